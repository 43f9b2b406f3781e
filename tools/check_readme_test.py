#!/usr/bin/env python3
"""check_readme.py runs what is marked, and fails on what is not."""

import contextlib
import io
import os
import pathlib
import tempfile
import unittest

import check_readme


class CheckReadme(unittest.TestCase):
    def check(self, text, timeout_s=60):
        """((run, skipped, faulty), what was printed) for a README of this text."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "README.md")
            path.write_text(text, encoding="utf-8")
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                counts = check_readme.check_file(path, pathlib.Path(folder, "bin"), timeout_s)
            return counts, printed.getvalue()

    def test_blocks_run_in_order_in_one_folder(self):
        counts, printed = self.check("<!-- ci: run -->\n```sh\necho a >file\n```\n\ntext\n\n"
                                     "<!-- ci: run -->\n```sh\ngrep -q a file\n```\n")
        self.assertEqual(counts, (2, 0, 0), printed)

    def test_a_failing_command_is_a_fault_though_others_follow(self):
        counts, printed = self.check("<!-- ci: run -->\n```sh\necho said\nfalse\ntrue\n```\n")
        self.assertEqual(counts, (1, 0, 1))
        self.assertIn("README.md:2: exit status 1", printed)
        self.assertIn("| said", printed)

    def test_a_block_without_a_mark_is_a_fault(self):
        self.assertEqual(self.check("```sh\ntrue\n```\n")[0], (0, 0, 1))
        self.assertEqual(self.check("<!-- ci: run -->\n\n```sh\ntrue\n```\n")[0], (0, 0, 1))

    def test_a_skipped_block_needs_a_reason(self):
        self.assertEqual(self.check("<!-- ci: skip: slow -->\n```sh\nfalse\n```\n")[0], (0, 1, 0))
        self.assertEqual(self.check("<!-- ci: skip -->\n```sh\ntrue\n```\n")[0], (0, 0, 1))

    def test_other_blocks_are_not_commands(self):
        self.assertEqual(self.check("```cpp\nint x;\n```\n\n```\nfalse\n```\n")[0], (0, 0, 0))

    def test_a_block_that_hangs_is_ended_and_is_a_fault(self):
        counts, printed = self.check("<!-- ci: run -->\n```sh\nread -r x <> <(:)\n```\n",
                                     timeout_s=0.2)
        self.assertEqual(counts, (1, 0, 1))
        self.assertIn("still running after 0.2 s", printed)

    def test_what_a_block_leaves_running_is_ended_with_it(self):
        with tempfile.TemporaryDirectory() as folder:
            pid_file = pathlib.Path(folder, "pid")
            # In its group, and in a session of its own.
            for start in ("", "setsid"):
                self.check(f"<!-- ci: run -->\n```sh\n{start} sleep 600 &\necho $! >{pid_file}\n```\n")
                pid = int(pid_file.read_text())
                try:
                    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
                except FileNotFoundError:
                    continue
                self.assertIn(stat.rpartition(")")[2].split()[0], "ZX", start)

    def test_the_build_comes_first_on_path_and_home_is_private(self):
        counts, printed = self.check('<!-- ci: run -->\n```sh\n[ "${PATH%%:*}" != /usr/bin ]\n'
                                     f'[ "$HOME" != "{os.environ.get("HOME", "")}" ]\n```\n')
        self.assertEqual(counts, (1, 0, 0), printed)


if __name__ == "__main__":
    unittest.main()
