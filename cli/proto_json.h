#pragma once

#include <nlohmann/json_fwd.hpp>

namespace google::protobuf {
class Message;
}

namespace godwit::cli {

// A message as an object with the .proto's field names, in its order. Unlike protobuf's own
// mapping, 64-bit integers are numbers, fields without presence are there with their default, and
// fields with presence that are not set are left out. `*_json` strings that hold JSON are embedded.
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

}  // namespace godwit::cli
