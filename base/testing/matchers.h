#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <utility>

#include "base/status.h"

namespace godwit::testing {

inline const Status& StatusOf(const Status& s) { return s; }
template <typename T>
Status StatusOf(const Result<T>& r) {
  return r.status();
}

// EXPECT_THAT(F(), IsOk()): for a Status or a Result.
MATCHER(IsOk, negation ? "is an error" : "is OK") {
  const Status s = StatusOf(arg);
  *result_listener << s.ToString();
  return s.ok();
}

// StatusIs(StatusCode::kNotFound), or with a matcher of the message: StatusIs(code,
// HasSubstr("x")).
MATCHER_P(StatusIs, code, std::string(negation ? "is not " : "is ") + StatusCodeName(code)) {
  const Status s = StatusOf(arg);
  *result_listener << s.ToString();
  return s.code() == code;
}
MATCHER_P2(StatusIs, code, message,
           std::string(negation ? "is not " : "is ") + StatusCodeName(code) +
               " with a message that " + ::testing::DescribeMatcher<std::string>(message)) {
  const Status s = StatusOf(arg);
  *result_listener << s.ToString();
  return s.code() == code && ::testing::Matches(message)(s.message());
}

// EXPECT_THAT(F(), IsOkAndHolds(3)): for a Result.
MATCHER_P(IsOkAndHolds, value, "is OK and holds the value") {
  if (!arg.ok()) {
    *result_listener << arg.status().ToString();
    return false;
  }
  return ::testing::ExplainMatchResult(value, *arg, result_listener);
}

}  // namespace godwit::testing

#define ASSERT_OK(expr) ASSERT_THAT(expr, ::godwit::testing::IsOk())
#define EXPECT_OK(expr) EXPECT_THAT(expr, ::godwit::testing::IsOk())
// ASSERT_OK_AND_ASSIGN(auto x, F()): x is F()'s value, or the test ends here.
#define ASSERT_OK_AND_ASSIGN(lhs, expr) \
  ASSERT_OK_AND_ASSIGN_(GODWIT_CONCAT_(godwit_result_, __LINE__), lhs, expr)
#define ASSERT_OK_AND_ASSIGN_(result, lhs, expr)                \
  auto result = (expr);                                         \
  ASSERT_TRUE(result.ok()) << #expr << ": " << result.status(); \
  lhs = std::move(result).value()
