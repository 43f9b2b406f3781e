#include "master/core/order.h"

#include <fmt/core.h>

namespace godwit::master {

std::string SaveName(const SaveId& save) {
  return fmt::format("term {}, step {}, try {}", save.term, save.step, save.attempt);
}

}  // namespace godwit::master
