#include "launcher/agent/free_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/unique_fd.h"

namespace godwit {

Result<uint16_t> FreeLoopbackPort() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoError(errno, "socket(AF_INET)");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(fd.get(), generic, sizeof(address)) != 0) {
    return ErrnoError(errno, "bind(127.0.0.1:0)");
  }
  socklen_t size = sizeof(address);
  if (getsockname(fd.get(), generic, &size) != 0) return ErrnoError(errno, "getsockname");
  return ntohs(address.sin_port);
}

}  // namespace godwit
