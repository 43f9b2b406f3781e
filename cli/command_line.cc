#include "cli/command_line.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdio>
#include <string_view>

#include "base/strings.h"
#include "cli/verb.h"

namespace godwit::cli {
namespace {

// "ckpt verify" of the parsed verb below the root; "" of the root.
std::string PathOf(const CLI::App* app) {
  if (app->get_parent() == nullptr) return "";
  const std::string parent = PathOf(app->get_parent());
  return parent.empty() ? app->get_name() : parent + " " + app->get_name();
}

CLI::App* DeepestParsed(CLI::App* app) {
  const std::vector<CLI::App*> below = app->get_subcommands();
  return below.empty() ? app : DeepestParsed(below.front());
}

std::vector<std::string> NamesBelow(CLI::App* app) {
  std::vector<std::string> names;
  for (const CLI::App* below : app->get_subcommands({})) names.push_back(below->get_name());
  return names;
}

std::string Known(const CLI::App& app) {
  const std::string path = PathOf(&app);
  return path.empty() ? "godwit --help" : "godwit " + path + " --help";
}

// What is wrong with `extra`, which no option or verb of `app` takes.
std::string Unexpected(CLI::App* app, const std::string& extra, bool misses_command) {
  const std::string path = PathOf(app);
  const std::string where = path.empty() ? "" : path + ": ";
  if (extra.size() > 1 && extra.front() == '-') {
    const std::string name = extra.substr(0, extra.find('='));
    std::vector<std::string> options;
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& long_name : option->get_lnames()) options.push_back("--" + long_name);
      for (const std::string& short_name : option->get_snames())
        options.push_back("-" + short_name);
    }
    std::string message = fmt::format("{}unknown option '{}'", where, name);
    const std::string hint = DidYouMean(name, options);
    return message + (hint.empty() ? fmt::format("; see '{}'", Known(*app)) : hint);
  }
  const std::vector<std::string> verbs = NamesBelow(app);
  if (!verbs.empty()) {
    const std::string hint = DidYouMean(extra, verbs);
    return fmt::format("{}unknown verb '{}'{}", where, extra,
                       hint.empty() ? "; allowed: " + Join(verbs, ", ") : hint);
  }
  if (misses_command) {
    return fmt::format("{}unexpected argument '{}'; the program comes after '--': godwit {} -- {}",
                       where, extra, path, extra);
  }
  return fmt::format("{}unexpected argument '{}'; see '{}'", where, extra, Known(*app));
}

// CLI11's message, in our words where its own don't say what is allowed.
std::string Described(std::string message) {
  // "Could not convert: --workers = a": all options that CLI11 converts itself are counts.
  constexpr std::string_view kConversion = "Could not convert: ";
  if (message.starts_with(kConversion)) {
    message.erase(0, kConversion.size());
    const size_t equals = message.find(" = ");
    if (equals != std::string::npos) {
      return fmt::format("{}: got '{}', allowed: a whole number that is not negative",
                         message.substr(0, equals), message.substr(equals + 3));
    }
  }
  return message;
}

// The first option of the parsed verb that was given an empty value: none has a meaning for it, and
// in a script it's a variable that was not set. Its name, or "".
std::string GivenEmpty(const CLI::App* app) {
  for (const CLI::Option* option : app->get_options()) {
    if (option->get_items_expected_max() == 0) continue;  // a flag
    const std::vector<std::string>& values = option->results();
    if (std::find(values.begin(), values.end(), "") != values.end()) return option->get_name();
  }
  return "";
}

int Usage(const std::string& message) {
  PrintError(message);
  return kExitUsage;
}

}  // namespace

int RunCommandLine(std::vector<std::string> args) {
  CLI::App root("Godwit: training jobs that leave in time and come back elsewhere", "godwit");
  root.set_version_flag("--version", "godwit " GODWIT_VERSION);
  root.set_help_flag("-h,--help", "Print this help");
  root.require_subcommand(0, 1);
  root.allow_extras();
  root.footer("'godwit VERB --help' shows a verb's options and an example.");

  Verbs verbs;
  AddRun(root, verbs);
  AddSubmit(root, verbs);
  AddJobs(root, verbs);
  AddStatus(root, verbs);
  AddEvents(root, verbs);
  AddLogs(root, verbs);
  AddExplain(root, verbs);
  AddPreempt(root, verbs);
  AddStop(root, verbs);
  AddQuotas(root, verbs);
  AddNodes(root, verbs);
  AddCkpt(root, verbs);
  AddScheduler(root, verbs);
  AddMaster(root, verbs);
  AddAgent(root, verbs);

  // CLI11 never sees the program's own arguments.
  Command command;
  bool has_command = false;
  if (const auto dashes = std::find(args.begin(), args.end(), "--"); dashes != args.end()) {
    has_command = true;
    command.assign(dashes + 1, args.end());
    args.erase(dashes, args.end());
  }

  try {
    std::vector<std::string> reversed(args.rbegin(), args.rend());
    root.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    CLI::App* app = DeepestParsed(&root);
    std::string before;  // the words that lead to the verb
    if (app != &root) {
      const std::string parent = PathOf(app->get_parent());
      before = parent.empty() ? "godwit" : "godwit " + parent;
    }
    const std::string text = app->help(before);
    std::fputs(text.c_str(), stdout);
    return kExitOk;
  } catch (const CLI::CallForVersion& version) {
    std::fputs((std::string(version.what()) + "\n").c_str(), stdout);
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    CLI::App* app = DeepestParsed(&root);
    const std::string path = PathOf(app);
    return Usage(fmt::format("{}{}; see '{}'", path.empty() ? "" : path + ": ",
                             Described(error.what()), Known(*app)));
  }

  CLI::App* app = DeepestParsed(&root);
  if (const std::string name = GivenEmpty(app); !name.empty()) {
    return Usage(fmt::format("{}: {}: got '', allowed: a value that is not empty; see '{}'",
                             PathOf(app), name, Known(*app)));
  }
  const auto verb = std::find_if(verbs.begin(), verbs.end(),
                                 [app](const Verb& candidate) { return candidate.app == app; });
  const bool misses_command = verb != verbs.end() && verb->takes_command && !has_command;
  for (CLI::App* level = app; level != nullptr; level = level->get_parent()) {
    const std::vector<std::string> extras = level->remaining();
    if (!extras.empty()) {
      return Usage(Unexpected(level, extras.front(), misses_command && level == app));
    }
  }
  if (verb == verbs.end()) {
    const std::string path = PathOf(app);
    return Usage(fmt::format("{}no verb given; allowed: {}; see '{}'",
                             path.empty() ? "" : path + ": ", Join(NamesBelow(app), ", "),
                             Known(*app)));
  }
  if (has_command && !verb->takes_command) {
    return Usage(
        fmt::format("{}: takes no command after '--'; see '{}'", PathOf(app), Known(*app)));
  }
  return verb->run(command);
}

}  // namespace godwit::cli
