#include "cli/table.h"

#include <gtest/gtest.h>

namespace godwit::cli {
namespace {

TEST(TableTest, ColumnsAlignWhateverTheColourAndTheAlphabet) {
  Table table({"NAME", "STATE", "REASON"});
  table.Row({"é", ColouredState("Running", true), "-"});
  table.Row({"longer-name", "Failed", ""});
  EXPECT_EQ(table.Render(),
            "NAME         STATE    REASON\n"
            "é            \033[32mRunning\033[0m  -\n"
            "longer-name  Failed\n");
}

TEST(TableTest, StatesAreNotColouredWhenColourIsOff) {
  EXPECT_EQ(ColouredState("Failed", false), "Failed");
}

TEST(TableTest, FieldsHaveTheirValuesInOneColumn) {
  EXPECT_EQ(RenderFields({{"a", "1"}, {"long", "2"}}), "a     1\nlong  2\n");
}

}  // namespace
}  // namespace godwit::cli
