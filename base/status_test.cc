#include "base/status.h"

#include <cerrno>
#include <memory>

#include "base/testing/matchers.h"

namespace godwit {
namespace {

using ::godwit::testing::IsOk;
using ::godwit::testing::IsOkAndHolds;
using ::godwit::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(StatusTest, DefaultIsOk) {
  EXPECT_OK(Status());
  EXPECT_EQ(Status().ToString(), "OK");
}

TEST(StatusTest, AnnotateKeepsTheCodeAndLeavesOkAlone) {
  EXPECT_THAT(NotFoundError("no file").Annotate("restore"),
              StatusIs(StatusCode::kNotFound, "restore: no file"));
  EXPECT_EQ(OkStatus().Annotate("restore"), OkStatus());
}

TEST(StatusTest, NamesOfCodesAreGrpcs) {
  EXPECT_EQ(StatusCodeName(StatusCode::kUnauthenticated), "UNAUTHENTICATED");
  EXPECT_EQ(StatusCodeName(static_cast<StatusCode>(17)), "UNKNOWN(17)");
  EXPECT_EQ(StatusCodeName(static_cast<StatusCode>(-1)), "UNKNOWN(-1)");
}

TEST(StatusTest, ErrnoBecomesACanonicalCodeAndNamesTheCall) {
  const struct {
    int error;
    StatusCode code;
  } kCases[] = {
      {ENOENT, StatusCode::kNotFound},
      {EEXIST, StatusCode::kAlreadyExists},
      {ENOSPC, StatusCode::kResourceExhausted},
      {EACCES, StatusCode::kPermissionDenied},
      {EAGAIN, StatusCode::kUnavailable},
      {EINVAL, StatusCode::kInvalidArgument},
      {ENOTEMPTY, StatusCode::kFailedPrecondition},
      {EPIPE, StatusCode::kAborted},
      {ETIMEDOUT, StatusCode::kDeadlineExceeded},
      {EIO, StatusCode::kUnknown},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(ErrnoError(c.error, "open(/a)"), StatusIs(c.code, HasSubstr("open(/a): ")));
  }
}

TEST(ResultTest, HoldsAValueThatCannotBeCopied) {
  Result<std::unique_ptr<int>> r = std::make_unique<int>(3);
  ASSERT_OK(r);
  const std::unique_ptr<int> p = std::move(r).value();
  EXPECT_EQ(*p, 3);
}

TEST(ResultTest, HoldsTheErrorInsteadOfAValue) {
  const Result<int> r = NotFoundError("x");
  EXPECT_THAT(r, Not(IsOk()));
  EXPECT_THAT(r, StatusIs(StatusCode::kNotFound, "x"));
  EXPECT_THAT(Result<int>(3), IsOkAndHolds(3));
  EXPECT_DEATH((void)r.value(), "CHECK failed: .*NOT_FOUND: x");
}

Result<int> Half(int n) {
  if (n % 2 != 0) return InvalidArgumentError("odd");
  return n / 2;
}
Result<int> Quarter(int n) {
  GODWIT_ASSIGN_OR_RETURN(const int half, Half(n));
  GODWIT_RETURN_IF_ERROR(Half(half).status());
  return Half(half);
}

TEST(ResultTest, MacrosReturnTheFirstError) {
  EXPECT_THAT(Quarter(8), IsOkAndHolds(2));
  EXPECT_THAT(Quarter(6), StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(Quarter(3), StatusIs(StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace godwit
