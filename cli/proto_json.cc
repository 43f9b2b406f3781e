#include "cli/proto_json.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <string>

namespace godwit::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using nlohmann::ordered_json;

// Bytes from outside may be no UTF-8: shown with replacement characters, not refused.
ordered_json Text(const std::string& text) {
  const std::string clean =
      ordered_json(text).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  return ordered_json::parse(clean);
}

// index < 0: the field isn't repeated.
ordered_json Value(const Message& m, const FieldDescriptor* field, int index) {
  const google::protobuf::Reflection* r = m.GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? r->GetInt32(m, field) : r->GetRepeatedInt32(m, field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? r->GetInt64(m, field) : r->GetRepeatedInt64(m, field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? r->GetUInt32(m, field) : r->GetRepeatedUInt32(m, field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return one ? r->GetUInt64(m, field) : r->GetRepeatedUInt64(m, field, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return one ? r->GetDouble(m, field) : r->GetRepeatedDouble(m, field, index);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return one ? r->GetFloat(m, field) : r->GetRepeatedFloat(m, field, index);
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? r->GetBool(m, field) : r->GetRepeatedBool(m, field, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return one ? r->GetEnum(m, field)->name() : r->GetRepeatedEnum(m, field, index)->name();
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text = one ? r->GetString(m, field) : r->GetRepeatedString(m, field, index);
      if (field->name().ends_with("_json")) {
        ordered_json embedded = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
        if (!embedded.is_discarded()) return embedded;
        if (text.empty()) return nullptr;
      }
      return Text(text);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(one ? r->GetMessage(m, field) : r->GetRepeatedMessage(m, field, index));
  }
  return nullptr;
}

}  // namespace

ordered_json ToJson(const Message& message) {
  ordered_json object = ordered_json::object();
  const google::protobuf::Descriptor* descriptor = message.GetDescriptor();
  const google::protobuf::Reflection* reflection = message.GetReflection();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    if (field->is_repeated()) {
      ordered_json list = ordered_json::array();
      for (int k = 0; k < reflection->FieldSize(message, field); ++k) {
        list.push_back(Value(message, field, k));
      }
      object[field->name()] = std::move(list);
    } else if (!field->has_presence() || reflection->HasField(message, field)) {
      object[field->name()] = Value(message, field, -1);
    }
  }
  return object;
}

}  // namespace godwit::cli
