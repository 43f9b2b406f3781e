#include "cli/table.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace godwit::cli {
namespace {

// Characters that a terminal shows: neither colour codes nor UTF-8 continuation bytes count.
size_t Width(std::string_view text) {
  size_t width = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') {
      while (i < text.size() && text[i] != 'm') ++i;
    } else if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) {
      ++width;
    }
  }
  return width;
}

}  // namespace

bool UseColour() {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && (no_colour == nullptr || *no_colour == '\0') &&
         terminal != nullptr && std::strcmp(terminal, "dumb") != 0;
}

std::string ColouredState(const std::string& state, bool colour) {
  if (!colour) return state;
  const char* code = "33";  // yellow: on its way
  if (state == "Running" || state == "Succeeded") code = "32";
  if (state == "Failed") code = "31";
  if (state == "Stopped") code = "90";
  return "\033[" + std::string(code) + "m" + state + "\033[0m";
}

void Table::Row(std::vector<std::string> cells) {
  GODWIT_CHECK(cells.size() == rows_.front().size());
  rows_.push_back(std::move(cells));
}

std::string Table::Render() const {
  std::vector<size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - Width(row[i]) + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string RenderFields(const std::vector<std::pair<std::string, std::string>>& fields) {
  size_t width = 0;
  for (const auto& [name, value] : fields) width = std::max(width, Width(name));
  std::string out;
  for (const auto& [name, value] : fields) {
    out += name + std::string(width - Width(name) + 2, ' ') + value + "\n";
  }
  return out;
}

}  // namespace godwit::cli
