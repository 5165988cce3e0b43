// Tests that a value read from a store with a secret was written by a holder of the secret, under that key, in this
// run.
#include "mesh/sealed_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tandem/error.h"
#include "tests/base/thrown.h"

namespace tandem::mesh {
namespace {

const std::string kStoreSecret = "sixteen letters!";

class SealedStoreTest : public testing::Test {
 protected:
  c10::intrusive_ptr<c10d::Store> plain_ = c10::make_intrusive<c10d::HashStore>();
  SealedStore store_{plain_, kStoreSecret, "run 1"};
};

std::string refusal(c10d::Store& store, const std::string& key) {
  return base::thrown_by<EnvironmentError>([&] { store.get(key); });
}

TEST_F(SealedStoreTest, ReturnsWhatWasSet) {
  const std::string value("bytes \0 and \xff", 13);
  for (const std::string& text : {value, std::string(), std::string(100'000, 'x')}) {
    store_.set("key", text);
    EXPECT_EQ(store_.get_to_str("key"), text);
    EXPECT_EQ(SealedStore(plain_, kStoreSecret, "run 1").get_to_str("key"), text) << "another rank's view";
  }
  EXPECT_TRUE(looks_sealed(plain_->get_to_str("key")));
  EXPECT_TRUE(store_.check({"key"}));
  EXPECT_EQ(store_.add("counter", 2), 2);
}

TEST_F(SealedStoreTest, RefusesWhatAStrangerWrote) {
  const std::string words =
      "TANDEM_SECRET_FILE: 'key' of the ranks' store was not written with this rank's secret; give all ranks the same "
      "file, and look who else is on the network";
  for (const std::string& forged : {std::string(), std::string("value"), "sealed:" + std::string(64, '0') + "value"}) {
    plain_->set("key", forged);
    EXPECT_EQ(refusal(store_, "key"), words) << forged;
  }
  SealedStore(plain_, "a second secret!", "run 1").set("key", std::string("value"));
  EXPECT_EQ(refusal(store_, "key"), words);
}

TEST_F(SealedStoreTest, RefusesAnyChangedByte) {
  store_.set("key", std::string("value"));
  const std::string sealed = plain_->get_to_str("key");
  for (size_t at = 0; at < sealed.size(); ++at) {
    std::string changed = sealed;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    plain_->set("key", changed);
    EXPECT_NE(refusal(store_, "key"), "") << "byte " << at;
  }
  plain_->set("key", sealed);
  EXPECT_EQ(refusal(store_, "key"), "");
}

TEST_F(SealedStoreTest, RefusesWhatStoodUnderAnotherKeyOrInAnotherRun) {
  store_.set("key", std::string("value"));
  const std::string sealed = plain_->get_to_str("key");
  plain_->set("other", sealed);
  EXPECT_NE(refusal(store_, "other"), "");
  SealedStore next_run(plain_, kStoreSecret, "run 2");
  EXPECT_NE(refusal(next_run, "key"), "");
  // Shifting the end of one text into the next is no way round it.
  SealedStore shifted(plain_, kStoreSecret, "run 1k");
  plain_->set("ey", sealed);
  EXPECT_NE(refusal(shifted, "ey"), "");
}

}  // namespace
}  // namespace tandem::mesh
