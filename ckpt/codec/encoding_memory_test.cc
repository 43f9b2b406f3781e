#include "ckpt/codec/encoding_memory.h"

#include <gtest/gtest.h>

namespace godwit::ckpt {
namespace {

ChunkEncoding Planes() {
  ChunkEncoding e;
  e.transform = Transform::kPlanes;
  e.width = 4;
  return e;
}

TEST(EncodingMemoryTest, AChoiceIsKeptForSomeSavesAndThenMadeAnew) {
  EncodingMemory m;
  EXPECT_FALSE(m.Get(1, false).has_value());
  m.Chosen(1, false, Planes());
  EXPECT_FALSE(m.Get(1, true).has_value()) << "with a base it is another question";
  for (uint64_t save = 0; save < EncodingMemory::kRecheckSaves; ++save) {
    ASSERT_EQ(m.Get(1, false), Planes()) << save;
    m.Achieved(1, false, 1000, 840);
    m.EndSave();
  }
  EXPECT_FALSE(m.Get(1, false).has_value());
}

TEST(EncodingMemoryTest, ADriftOfTheSizeMakesItAnewAtOnce) {
  EncodingMemory m;
  m.Chosen(1, false, Planes());
  m.Achieved(1, false, 1000, 840);
  m.EndSave();
  m.Achieved(1, false, 1000, 855);
  m.EndSave();
  EXPECT_TRUE(m.Get(1, false).has_value()) << "1.5 % is no drift";
  m.Achieved(1, false, 1000, 865);
  m.EndSave();
  EXPECT_FALSE(m.Get(1, false).has_value());
}

TEST(EncodingMemoryTest, ATensorThatASaveDidNotWriteStays) {
  EncodingMemory m;
  m.Chosen(1, false, Planes());
  for (int i = 0; i < 100; ++i) m.EndSave();
  EXPECT_TRUE(m.Get(1, false).has_value());
}

TEST(WorthEncodingTest, NeverSlowerThanTheStorageAlone) {
  struct Row {
    double encode, storage, ratio;
    bool expected;
  };
  for (const Row& r : {Row{0, 1e9, 0.84, true},         // not measured
                       Row{2.4e9, 0, 0.84, true},       // not measured
                       Row{2.4e9, 1.2e9, 0.84, true},   // the disk is the limit
                       Row{4.8e9, 6e9, 0.84, false},    // storage outruns the encoder
                       Row{0.5e9, 1.2e9, 0.5, false},   // so slow that even half the bytes lose
                       Row{2.4e9, 1.2e9, 0.999, true},  // no gain, no loss
                       Row{10e9, 12e9, 0.5, false}}) {
    EXPECT_EQ(WorthEncoding({r.encode, r.storage, r.ratio}, true), r.expected)
        << r.encode << " " << r.storage << " " << r.ratio;
  }
}

TEST(WorthEncodingTest, WhatIsStoredIsEncodedAgainForATenthLessOnly) {
  const SaveRates even{1.05e9, 1e9, 0.5};
  EXPECT_TRUE(WorthEncoding(even, true));
  EXPECT_FALSE(WorthEncoding(even, false));
  EXPECT_TRUE(WorthEncoding({2e9, 1e9, 0.5}, false));
}

}  // namespace
}  // namespace godwit::ckpt
