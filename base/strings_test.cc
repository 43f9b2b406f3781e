#include "base/strings.h"

#include "base/testing/matchers.h"

namespace godwit {
namespace {

using ::godwit::testing::IsOkAndHolds;
using ::godwit::testing::StatusIs;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(StringsTest, SplitAndJoinAreInverse) {
  EXPECT_THAT(Split("a,,b", ','), ElementsAre("a", "", "b"));
  EXPECT_THAT(Split("", ','), ElementsAre(""));
  EXPECT_THAT(Split(",", ','), ElementsAre("", ""));
  EXPECT_EQ(Join(Split("a,,b,", ','), ","), "a,,b,");
  EXPECT_EQ(Join({}, ","), "");
}

TEST(StringsTest, TrimTakesWhiteSpaceAtTheEndsOnly) {
  EXPECT_EQ(Trim(" \t a b\n"), "a b");
  EXPECT_EQ(Trim(" \n"), "");
  EXPECT_EQ(Trim(""), "");
}

TEST(StringsTest, IntegersAreParsedStrictly) {
  EXPECT_THAT(ParseUint64("0"), IsOkAndHolds(0u));
  EXPECT_THAT(ParseUint64("18446744073709551615"), IsOkAndHolds(UINT64_MAX));
  for (const char* bad :
       {"", " 1", "1 ", "+1", "-1", "0x10", "1.0", "18446744073709551616", "1a"}) {
    EXPECT_THAT(ParseUint64(bad), StatusIs(StatusCode::kInvalidArgument, HasSubstr(bad)));
  }
  EXPECT_THAT(ParseInt64("-9223372036854775808"), IsOkAndHolds(INT64_MIN));
  for (const char* bad : {"", "-", "+1", "--1", "9223372036854775808"}) {
    EXPECT_THAT(ParseInt64(bad), StatusIs(StatusCode::kInvalidArgument));
  }
}

TEST(StringsTest, DoublesAreFiniteDecimals) {
  EXPECT_THAT(ParseDouble("0.5"), IsOkAndHolds(0.5));
  EXPECT_THAT(ParseDouble("-1e-3"), IsOkAndHolds(-1e-3));
  for (const char* bad : {"", "nan", "inf", "1e999", "1,5", "1 "}) {
    EXPECT_THAT(ParseDouble(bad), StatusIs(StatusCode::kInvalidArgument)) << bad;
  }
}

TEST(StringsTest, DurationsNeedAUnit) {
  EXPECT_THAT(ParseDuration("90s"), IsOkAndHolds(seconds(90)));
  EXPECT_THAT(ParseDuration("1.5h"), IsOkAndHolds(minutes(90)));
  EXPECT_THAT(ParseDuration("200ms"), IsOkAndHolds(milliseconds(200)));
  EXPECT_THAT(ParseDuration("2m"), IsOkAndHolds(minutes(2)));
  EXPECT_THAT(ParseDuration("1d"), IsOkAndHolds(hours(24)));
  EXPECT_THAT(ParseDuration("5ns"), IsOkAndHolds(Duration(5)));
  EXPECT_THAT(ParseDuration("0"), IsOkAndHolds(Duration(0)));
  for (const char* bad : {"", "5", "s", "-1s", "1 s", "1w", "1e3s", "9999999999h", "1.2.3s", "."}) {
    EXPECT_THAT(ParseDuration(bad), StatusIs(StatusCode::kInvalidArgument)) << bad;
  }
}

TEST(StringsTest, BytesKnowBothKindsOfUnits) {
  EXPECT_THAT(ParseBytes("1024"), IsOkAndHolds(1024u));
  EXPECT_THAT(ParseBytes("16MiB"), IsOkAndHolds(16u << 20));
  EXPECT_THAT(ParseBytes("1.5GiB"), IsOkAndHolds(3ull << 29));
  EXPECT_THAT(ParseBytes("2GB"), IsOkAndHolds(2'000'000'000u));
  EXPECT_THAT(ParseBytes("4K"), IsOkAndHolds(4096u));
  for (const char* bad : {"", "-1", "MiB", "1 MiB", "1mib", "99999999TiB", "0x10"}) {
    EXPECT_THAT(ParseBytes(bad), StatusIs(StatusCode::kInvalidArgument)) << bad;
  }
}

TEST(StringsTest, EditDistanceIsLevenshteins) {
  EXPECT_EQ(EditDistance("", ""), 0u);
  EXPECT_EQ(EditDistance("abc", ""), 3u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("sitting", "kitten"), 3u);
}

TEST(StringsTest, ASlipOfTheKeyboardFindsTheNameAndNonsenseNone) {
  const std::vector<std::string> names = {"--nproc-per-node", "--nnodes", "--run-id"};
  EXPECT_EQ(NearestName("--nproc_per_nod", names), "--nproc-per-node");
  EXPECT_EQ(DidYouMean("--nnode", names), "; did you mean '--nnodes'?");
  EXPECT_EQ(DidYouMean("--verbose", names), "");
  EXPECT_EQ(NearestName("x", {}), std::nullopt);
}

TEST(StringsTest, TheBeginningOfOneNameFindsItAndThatOfTwoNone) {
  const std::vector<std::string> names = {"--nproc-per-node", "--state-dir", "--run-dir",
                                          "--run-id"};
  EXPECT_EQ(NearestName("--state", names), "--state-dir");
  EXPECT_EQ(NearestName("--run", names), std::nullopt);
  EXPECT_EQ(NearestName("--", names), std::nullopt);
}

TEST(StringsTest, NoOptionOfOneLetterStandsForAnother) {
  const std::vector<std::string> names = {"-h", "--help"};
  EXPECT_EQ(NearestName("-q", names), std::nullopt);
}

TEST(StringsTest, HumanBytesShowsThreeDigits) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(23u << 20), "23 MiB");
  EXPECT_EQ(HumanBytes((1u << 20) - 1), "1 MiB");
  EXPECT_EQ(HumanBytes(UINT64_MAX), "16 EiB");
}

TEST(StringsTest, HumanDurationPicksTheUnit) {
  EXPECT_EQ(HumanDuration(Duration(0)), "0 s");
  EXPECT_EQ(HumanDuration(Duration(250)), "250 ns");
  EXPECT_EQ(HumanDuration(std::chrono::microseconds(1500)), "1.5 ms");
  EXPECT_EQ(HumanDuration(seconds(42)), "42 s");
  EXPECT_EQ(HumanDuration(milliseconds(59'990)), "1m00s");
  EXPECT_EQ(HumanDuration(seconds(185)), "3m05s");
  EXPECT_EQ(HumanDuration(hours(2)), "2h00m");
  EXPECT_EQ(HumanDuration(hours(123)), "5d03h");
  EXPECT_EQ(HumanDuration(seconds(-3)), "-3 s");
  EXPECT_EQ(HumanDuration(Duration::min()).substr(0, 1), "-");
}

TEST(StringsTest, OneOfAThingHasNoPlural) {
  EXPECT_EQ(Count(0, "worker"), "0 workers");
  EXPECT_EQ(Count(1, "worker"), "1 worker");
  EXPECT_EQ(Count(2, "worker"), "2 workers");
}

TEST(StringsTest, GoodUtf8IsKeptAndBadReplaced) {
  EXPECT_EQ(ValidUtf8("gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80"),
            "gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80");
  EXPECT_EQ(ValidUtf8("\xff"
                      "a\xc3"),
            "?a?");
  EXPECT_EQ(ValidUtf8("\xe0\x80\x80"), "???");       // overlong
  EXPECT_EQ(ValidUtf8("\xed\xa0\x80"), "???");       // a surrogate
  EXPECT_EQ(ValidUtf8("\xf4\x90\x80\x80"), "????");  // beyond U+10FFFF
  EXPECT_TRUE(IsUtf8("gr\xc3\xbc\xc3\x9f"));
  EXPECT_FALSE(IsUtf8("gr\xc3"));
}

TEST(StringsTest, UnixTimeIsUtcWithMilliseconds) {
  EXPECT_EQ(FormatUnixTime(Duration(0)), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(FormatUnixTime(milliseconds(1'700'000'000'123)), "2023-11-14T22:13:20.123Z");
  EXPECT_EQ(FormatUnixTime(milliseconds(-1)), "1969-12-31T23:59:59.999Z");
}

}  // namespace
}  // namespace godwit
