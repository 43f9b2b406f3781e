#include "runtime/collective/host_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/strings.h"
#include "base/thread.h"
#include "base/unique_fd.h"

namespace godwit {
namespace {

// Of a lookup under way: held by its thread and by who waits for it.
struct Pending {
  Mutex mutex;
  CondVar changed;
  std::optional<Result<std::vector<std::string>>> found GUARDED_BY(mutex);
};

// An address that getaddrinfo can read without asking anybody.
struct NumericAddress {
  sockaddr_storage address{};
  socklen_t size = 0;
};

std::optional<NumericAddress> ParseNumeric(const std::string& text) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(text.c_str(), nullptr, &hints, &list) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  NumericAddress numeric;
  std::memcpy(&numeric.address, list->ai_addr, list->ai_addrlen);
  numeric.size = list->ai_addrlen;
  return numeric;
}

bool CanListenOn(const NumericAddress& numeric) {
  const UniqueFd fd(socket(numeric.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return fd.valid() &&
         bind(fd.get(), reinterpret_cast<const sockaddr*>(&numeric.address), numeric.size) == 0;
}

}  // namespace

Result<std::vector<std::string>> LookUpHost(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &list); error != 0) {
    return NotFoundError("host '" + host + "': " + gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(each->ai_addr, each->ai_addrlen, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      addresses.emplace_back(text);
    }
  }
  return addresses;
}

Result<std::string> LocalAddressOf(const std::string& host, MonotonicTime deadline,
                                   const Lookup& lookup) {
  if (ParseNumeric(host)) return host;
  const auto pending = std::make_shared<Pending>();
  try {
    // Not a Thread, which would be joined: nothing ends a lookup but its own timeouts.
    std::thread([pending, host, lookup] {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_BLOCK, &all, nullptr);
      SetCurrentThreadName("gw-resolve");
      Result<std::vector<std::string>> found = lookup(host);
      MutexLock lock(pending->mutex);
      pending->found = std::move(found);
      pending->changed.NotifyAll();
    }).detach();
  } catch (const std::system_error& e) {
    return ResourceExhaustedError("host '" + host + "': no thread to look it up: " + e.what());
  }
  const MonotonicTime began = MonotonicClock::now();
  std::vector<std::string> addresses;
  {
    MutexLock lock(pending->mutex);
    while (!pending->found) {
      if (!pending->changed.WaitUntil(pending->mutex, deadline) && !pending->found) {
        return DeadlineExceededError("host '" + host + "': its name was not resolved within " +
                                     HumanDuration(MonotonicClock::now() - began) +
                                     "; a line in /etc/hosts does without a name server");
      }
    }
    GODWIT_RETURN_IF_ERROR(pending->found->status());
    addresses = **pending->found;
  }
  for (const std::string& address : addresses) {
    const std::optional<NumericAddress> numeric = ParseNumeric(address);
    if (numeric && CanListenOn(*numeric)) return address;
  }
  return NotFoundError("host '" + host + "': none of its addresses (" + Join(addresses, ", ") +
                       ") is this host's");
}

}  // namespace godwit
