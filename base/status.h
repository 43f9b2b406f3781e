#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"

namespace godwit {

// The canonical codes of gRPC (https://grpc.io/docs/guides/status-codes/), with the same numbers,
// so that a status crosses a process boundary without a table.
enum class StatusCode : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// "NOT_FOUND" and so on; "UNKNOWN(<n>)" for a number outside the enumeration.
std::string StatusCodeName(StatusCode code);

// The outcome of an operation. A message is one line that names the object, the field, what was
// got and what is allowed. Immutable; safe to copy between threads.
class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {
    GODWIT_CHECK(code != StatusCode::kOk);
  }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // "OK", or "NOT_FOUND: <message>".
  std::string ToString() const;

  // The same code with "<context>: " before the message; OK stays OK.
  Status Annotate(std::string_view context) const;

  friend bool operator==(const Status& a, const Status& b) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

std::ostream& operator<<(std::ostream& out, const Status& status);

inline Status OkStatus() { return Status(); }
inline Status CancelledError(std::string m) { return {StatusCode::kCancelled, std::move(m)}; }
inline Status UnknownError(std::string m) { return {StatusCode::kUnknown, std::move(m)}; }
inline Status InvalidArgumentError(std::string m) {
  return {StatusCode::kInvalidArgument, std::move(m)};
}
inline Status DeadlineExceededError(std::string m) {
  return {StatusCode::kDeadlineExceeded, std::move(m)};
}
inline Status NotFoundError(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
inline Status AlreadyExistsError(std::string m) {
  return {StatusCode::kAlreadyExists, std::move(m)};
}
inline Status PermissionDeniedError(std::string m) {
  return {StatusCode::kPermissionDenied, std::move(m)};
}
inline Status ResourceExhaustedError(std::string m) {
  return {StatusCode::kResourceExhausted, std::move(m)};
}
inline Status FailedPreconditionError(std::string m) {
  return {StatusCode::kFailedPrecondition, std::move(m)};
}
inline Status AbortedError(std::string m) { return {StatusCode::kAborted, std::move(m)}; }
inline Status OutOfRangeError(std::string m) { return {StatusCode::kOutOfRange, std::move(m)}; }
inline Status UnimplementedError(std::string m) {
  return {StatusCode::kUnimplemented, std::move(m)};
}
inline Status InternalError(std::string m) { return {StatusCode::kInternal, std::move(m)}; }
inline Status UnavailableError(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }
inline Status DataLossError(std::string m) { return {StatusCode::kDataLoss, std::move(m)}; }
inline Status UnauthenticatedError(std::string m) {
  return {StatusCode::kUnauthenticated, std::move(m)};
}

// The status for a failed system call: `error` is an errno value, `what` says which call on which
// object ("open(/a/b)").
//   NOT_FOUND            ENOENT ESRCH
//   ALREADY_EXISTS       EEXIST EADDRINUSE
//   RESOURCE_EXHAUSTED   ENOSPC EDQUOT ENOMEM EMFILE ENFILE EFBIG ETOOMANYREFS
//   PERMISSION_DENIED    EACCES EPERM EROFS
//   UNAVAILABLE          EAGAIN EINTR ECONNREFUSED
//   INVALID_ARGUMENT     EINVAL ENAMETOOLONG
//   FAILED_PRECONDITION  ENOTEMPTY ENOTDIR EISDIR EBUSY
//   ABORTED              EPIPE ECONNRESET
//   DEADLINE_EXCEEDED    ETIMEDOUT
//   UNKNOWN              the rest
Status ErrnoError(int error, std::string_view what);

// A value of type T, or the status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : rep_(std::in_place_index<0>, std::move(value)) {}
  Result(Status status) : rep_(std::in_place_index<1>, std::move(status)) {
    GODWIT_CHECK(!std::get<1>(rep_).ok());  // an OK status carries no value
  }

  bool ok() const { return rep_.index() == 0; }
  explicit operator bool() const { return ok(); }
  Status status() const { return ok() ? Status() : std::get<1>(rep_); }

  // REQUIRES: ok().
  T& value() & { return Value(); }
  const T& value() const& { return const_cast<Result*>(this)->Value(); }
  // By value, so that `for (x : F().value())` and `const auto& x = F().value()` are sound.
  T value() && { return std::move(Value()); }
  T& operator*() & { return Value(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(Value()); }
  T* operator->() { return &Value(); }
  const T* operator->() const { return &value(); }

 private:
  T& Value() {
    if (!ok()) internal::CheckFailed(__FILE__, __LINE__, std::get<1>(rep_).ToString());
    return std::get<0>(rep_);
  }
  std::variant<T, Status> rep_;
};

}  // namespace godwit

#define GODWIT_CONCAT_INNER_(a, b) a##b
#define GODWIT_CONCAT_(a, b) GODWIT_CONCAT_INNER_(a, b)

// Returns from the enclosing function when `expr` (a Status) is not OK.
#define GODWIT_RETURN_IF_ERROR(expr)                                                           \
  do {                                                                                         \
    if (::godwit::Status godwit_status_ = (expr); !godwit_status_.ok()) return godwit_status_; \
  } while (false)

// GODWIT_ASSIGN_OR_RETURN(auto x, F()): x is the value of F(), or the function returns its status.
#define GODWIT_ASSIGN_OR_RETURN(lhs, expr) \
  GODWIT_ASSIGN_OR_RETURN_(GODWIT_CONCAT_(godwit_result_, __LINE__), lhs, expr)
#define GODWIT_ASSIGN_OR_RETURN_(result, lhs, expr) \
  auto result = (expr);                             \
  if (!result.ok()) return result.status();         \
  lhs = std::move(result).value()
