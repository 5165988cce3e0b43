// Tests that processes outside of rank 0's mesh read its announcement, and nobody else's.
#include "mesh/announcement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mesh/network.h"
#include "mesh/rendezvous.h"
#include "tandem/error.h"

namespace tandem::mesh {
namespace {

// Rank 0 trains alone, and rank 1 is a rollout worker.
class Announcements : public testing::Test {
 protected:
  Announcements() {
    launch_.size = launch_.local_size = 2;
    launch_.master_port = port_of(listen_at("127.0.0.1", 0));
    LaunchVariables alone = launch_;
    alone.size = alone.local_size = 1;
    mesh_ = join(alone, {.timeout_s = 20.0, .keeps_store = true});
  }
  LaunchVariables rank(int number) const {
    LaunchVariables launch = launch_;
    launch.rank = launch.local_rank = number;
    return launch;
  }
  std::string why_not_read(const AnnouncementSettings& settings) const {
    try {
      return "read: " + wait_for_announcement(rank(1), settings, "place");
    } catch (const EnvironmentError& error) {
      return error.what();
    } catch (const UserError& error) {
      return std::string("user: ") + error.what();
    }
  }

  LaunchVariables launch_;
  std::unique_ptr<Mesh> mesh_;
};

TEST_F(Announcements, AreReadByOthers) {
  announce(rank(0), {}, "place", "10.0.0.1:29600");
  EXPECT_EQ(wait_for_announcement(rank(1), {}, "place"), "10.0.0.1:29600");
}

TEST_F(Announcements, AreWaitedForAsLongAsTheyMayTake) {
  EXPECT_THAT(why_not_read({.timeout_s = 0.2}),
              testing::HasSubstr("has not said within 0.2 s (--distributed-timeout-minutes)"));
}

TEST_F(Announcements, OfAnotherSecretAreNotBelieved) {
  announce(rank(0), {.secret = "sixteen letters!"}, "place", "10.0.0.1:29600");
  EXPECT_EQ(why_not_read({.secret = "sixteen letters!"}), "read: 10.0.0.1:29600");
  EXPECT_THAT(why_not_read({.secret = "a second secret!"}), testing::StartsWith("user: TANDEM_SECRET_FILE: "));
  EXPECT_THAT(why_not_read({}),
              testing::StartsWith("user: rank 0 was started with TANDEM_SECRET_FILE, rank 1 without"));
}

}  // namespace
}  // namespace tandem::mesh
