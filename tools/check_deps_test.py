#!/usr/bin/env python3
"""check_deps.py finds what it promises to find."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import check_deps


class CheckInclude(unittest.TestCase):
    def assert_allowed(self, source, include):
        self.assertIsNone(check_deps.check_include(source, include))

    def assert_forbidden(self, source, include):
        self.assertIsNotNone(check_deps.check_include(source, include), f"{source}: {include}")

    def test_everything_may_use_base_and_base_uses_nothing(self):
        for source in ("control/page.cc", "ckpt/format/plan.cc", "master/core/decide.cc",
                       "scheduler/policy/decide.cc", "runtime/run.cc", "launcher/agent.cc"):
            self.assert_allowed(source, "base/status.h")
        self.assert_allowed("base/status.cc", "base/check.h")
        self.assert_forbidden("base/status.cc", "control/page.h")

    def test_runtime_master_launcher_and_scheduler_never_include_each_other(self):
        modules = ("runtime", "master", "launcher", "scheduler")
        for source in modules:
            for target in modules:
                if source != target:
                    self.assert_forbidden(f"{source}/x.cc", f"{target}/y.h")
                    self.assert_forbidden(f"{source}/x_test.cc", f"{target}/y.h")

    def test_only_the_command_sees_all_modules(self):
        self.assert_allowed("cli/run.cc", "launcher/agent.h")
        self.assert_forbidden("control/page.cc", "launcher/agent.h")
        self.assert_forbidden("scheduler/executor/local.cc", "cli/main.h")

    def test_master_sees_no_more_of_ckpt_than_it_needs(self):
        self.assert_allowed("master/ops/commit.cc", "ckpt/lineage/checkpoint_dir.h")
        self.assert_forbidden("master/ops/commit.cc", "ckpt/engine/arena.h")

    def test_a_part_is_bound_by_its_own_rule_not_by_that_of_its_module(self):
        self.assert_allowed("master/process.cc", "master/core/decide.h")
        self.assert_forbidden("master/core/decide.cc", "master/process.h")
        self.assert_forbidden("ckpt/format/plan.cc", "ckpt/io/file.h")
        self.assert_forbidden("scheduler/policy/decide.cc", "proto/scheduler.pb.h")

    def test_a_test_may_use_its_modules_fakes_and_nothing_else_may(self):
        self.assert_allowed("ckpt/format/plan_test.cc", "ckpt/testing/toy_state.h")
        self.assert_forbidden("ckpt/format/plan.cc", "ckpt/testing/toy_state.h")
        self.assert_forbidden("runtime/include/godwit/runtime/run.h", "ckpt/testing/toy_state.h")

    def test_a_public_header_is_bound_under_either_spelling(self):
        self.assert_allowed("examples/minimal/main.cc", "godwit/runtime/run.h")
        self.assert_allowed("runtime/include/godwit/runtime/run.h",
                            "ckpt/include/godwit/ckpt/state.h")
        self.assert_forbidden("runtime/include/godwit/runtime/run.h", "ckpt/engine/arena.h")
        self.assert_forbidden("master/core/decide.cc", "godwit/runtime/run.h")

    def test_the_worker_side_without_libtorch_never_sees_its_parts(self):
        self.assert_forbidden("runtime/run.cc", "ckpt/torch/tensors.h")
        self.assert_allowed("runtime/torch/track.cc", "ckpt/torch/tensors.h")

    def test_vendors_stay_where_they_belong(self):
        self.assert_allowed("ckpt/torch/tensors.cc", "torch/torch.h")
        self.assert_forbidden("ckpt/engine/restore.cc", "torch/torch.h")
        self.assert_forbidden("runtime/run.cc", "grpcpp/grpcpp.h")
        self.assert_forbidden("ckpt/io/files.cc", "google/protobuf/message.h")
        self.assert_allowed("master/server.cc", "grpcpp/grpcpp.h")
        self.assert_forbidden("master/core/decide.cc", "grpcpp/grpcpp.h")
        self.assert_forbidden("scheduler/policy/decide.cc", "sqlite3.h")
        self.assert_allowed("scheduler/store/store.cc", "sqlite3.h")
        self.assert_forbidden("runtime/collective/ring.cc", "gloo/allreduce.h")
        self.assert_allowed("runtime/collective/gloo/ring.cc", "gloo/allreduce.h")

    def test_all_rules_name_folders_that_have_rules(self):
        for folder, allowed in check_deps.EDGES.items():
            for target in allowed:
                self.assertTrue(target == check_deps.ALL or target in check_deps.EDGES,
                                f"{folder} -> {target}")


class CheckTree(unittest.TestCase):
    def run_on(self, files):
        with tempfile.TemporaryDirectory() as root:
            for name, text in files.items():
                path = pathlib.Path(root, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            tool = pathlib.Path(__file__).with_name("check_deps.py")
            return subprocess.run([sys.executable, tool, "--root", root], capture_output=True,
                                  text=True, check=False, timeout=60)

    def test_a_forbidden_edge_fails_and_is_named_with_its_line(self):
        result = self.run_on({"base/a.h": "#pragma once\n",
                              "base/a.cc": '#include "base/a.h"\n#  include "master/b.h"\n'})
        self.assertEqual(result.returncode, 1)
        self.assertIn("base/a.cc:2:", result.stdout)
        self.assertIn("base may not include master/b.h", result.stdout)

    def test_a_clean_tree_passes(self):
        result = self.run_on({"base/a.h": "#pragma once\n", "cli/a.cc": '#include "base/a.h"\n'})
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_a_folder_without_a_rule_fails(self):
        self.assertEqual(self.run_on({"utils/a.h": "#pragma once\n"}).returncode, 1)

    def test_a_tree_without_files_fails_rather_than_passes(self):
        self.assertEqual(self.run_on({"README.md": ""}).returncode, 1)


if __name__ == "__main__":
    unittest.main()
