#include "control/keeper_protocol.h"

#include <type_traits>

#include "base/bytes.h"

namespace godwit {
namespace {

// Each message lists its fields once, for both directions. `c` is Encoder or Decoder.
template <typename C, typename M>
void Fields(C& c, M& m) {
  using T = std::remove_const_t<M>;
  if constexpr (std::is_same_v<T, ClaimRequest>) {
    c(m.version), c(m.slot), c(m.epoch), c(m.pid), c(m.directory), c(m.total_steps);
    c(m.persist_every), c(m.legal_world_sizes);
  } else if constexpr (std::is_same_v<T, ClaimReply>) {
    c(m.snapshot_bytes);
  } else if constexpr (std::is_same_v<T, ReserveRequest> || std::is_same_v<T, SnapshotReply> ||
                       std::is_same_v<T, LargeRequest>) {
    c(m.bytes);
  } else if constexpr (std::is_same_v<T, PingRequest> || std::is_same_v<T, PongReply>) {
    c(m.number);
  } else if constexpr (std::is_same_v<T, AttachRequest>) {
    c(m.version);
  } else if constexpr (std::is_same_v<T, AttachReply>) {
    c(m.slots), c(m.keeper_pid);
  } else if constexpr (std::is_same_v<T, SlotState>) {
    c(m.slot), c(m.pid), c(m.epoch), c(m.claimed), c(m.snapshot_bytes);
    Fields(c, m.claim);
  } else if constexpr (std::is_same_v<T, StartWorkerRequest>) {
    c(m.slot), c(m.epoch), c(m.argv), c(m.env), c(m.cwd), c(m.stdout_path), c(m.stderr_path);
  } else if constexpr (std::is_same_v<T, StartWorkerReply>) {
    c(m.slot), c(m.pid);
  } else if constexpr (std::is_same_v<T, SignalRequest>) {
    c(m.slot), c(m.signal);
  } else if constexpr (std::is_same_v<T, ShutdownRequest>) {
  } else if constexpr (std::is_same_v<T, ClaimedEvent>) {
    Fields(c, m.claim);
  } else if constexpr (std::is_same_v<T, ExitedEvent>) {
    c(m.slot), c(m.pid), c(m.epoch), c(m.exit_code), c(m.signal);
  } else {
    static_assert(std::is_same_v<T, ErrorReply>);
    c(m.slot), c(m.code), c(m.message);
  }
}

struct Encoder {
  ByteWriter out;
  void operator()(uint8_t v) { out.U8(v); }
  void operator()(uint32_t v) { out.U32(v); }
  void operator()(int32_t v) { out.U32(static_cast<uint32_t>(v)); }
  void operator()(uint64_t v) { out.U64(v); }
  void operator()(const std::string& v) { out.String(v); }
  template <typename T>
  void operator()(const std::vector<T>& v) {
    out.U32(static_cast<uint32_t>(v.size()));
    for (const T& element : v) (*this)(element);
  }
};

struct Decoder {
  ByteReader in;
  void operator()(uint8_t& v) { v = in.ReadU8(); }
  void operator()(uint32_t& v) { v = in.ReadU32(); }
  void operator()(int32_t& v) { v = static_cast<int32_t>(in.ReadU32()); }
  void operator()(uint64_t& v) { v = in.ReadU64(); }
  void operator()(std::string& v) { v = in.ReadString(kMaxKeeperMessageBytes); }
  template <typename T>
  void operator()(std::vector<T>& v) {
    const uint32_t count = in.ReadU32();
    // An element takes at least 4 bytes (a number, or a string's length), so a count that the rest
    // of the packet can't hold is refused before anything is allocated for it.
    if (count > in.remaining() / 4) {
      in.Fail("list of " + std::to_string(count) + " in " + std::to_string(in.remaining()) +
              " bytes");
      return;
    }
    for (uint32_t i = 0; i < count && in.ok(); ++i) (*this)(v.emplace_back());
  }
};

template <size_t... I>
bool DecodeAs(size_t type, Decoder& decoder, KeeperMessage* out, std::index_sequence<I...>) {
  const auto decode = [&]<size_t Index>() {
    Fields(decoder, out->emplace<Index>());
    return true;
  };
  return ((type == I && decode.template operator()<I>()) || ...);
}

}  // namespace

std::string EncodeKeeperMessage(const KeeperMessage& message) {
  Encoder encoder;
  encoder(static_cast<uint8_t>(message.index()));
  std::visit([&](const auto& m) { Fields(encoder, m); }, message);
  return encoder.out.Take();
}

Result<KeeperMessage> DecodeKeeperMessage(std::span<const std::byte> packet, size_t max_bytes) {
  if (packet.size() > max_bytes) {
    return InvalidArgumentError("keeper message: " + std::to_string(packet.size()) +
                                " bytes, allowed: at most " + std::to_string(max_bytes));
  }
  Decoder decoder{ByteReader(packet, "keeper message")};
  const size_t type = decoder.in.ReadU8();
  KeeperMessage message;
  constexpr size_t kTypes = std::variant_size_v<KeeperMessage>;
  if (decoder.in.ok() && !DecodeAs(type, decoder, &message, std::make_index_sequence<kTypes>())) {
    return InvalidArgumentError("keeper message: type " + std::to_string(type) +
                                ", allowed: 0 to " + std::to_string(kTypes - 1));
  }
  if (const Status status = decoder.in.Finish(); !status.ok()) {
    return InvalidArgumentError(status.message());
  }
  return message;
}

}  // namespace godwit
