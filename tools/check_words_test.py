#!/usr/bin/env python3
"""check_words.py finds what it promises to find, and nothing else."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import check_words


class CheckLine(unittest.TestCase):
    def test_finds_notes_markers_machine_paths_and_trailing_spaces(self):
        for line in ("// TODO: later", "# FIXME",  # check_words: ok
                     "<<<<<<< HEAD", "=======", ">>>>>>> branch",  # check_words: ok
                     'path = "/home/ann/x"', "see /root/x", "cd /work/main",  # check_words: ok
                     "x = 1 ", "\t"):
            self.assertNotEqual(check_words.check_line(line), [], line)

    def test_leaves_other_lines_alone(self):
        for line in ("// a todo list", "value = 1", "========", "Section\n--------",
                     '"$HOME/x"', "${root}/work/x", "scratch/work/x", "tree/root/x",
                     "/usr/bin/python3", "the /home page"):
            self.assertEqual(check_words.check_line(line), [], line)

    def test_an_exception_is_marked_in_the_line(self):
        note = "// FIX" + "ME"
        self.assertNotEqual(check_words.check_line(note), [])
        self.assertEqual(check_words.check_line(note + "  // check_words: ok"), [])


class CheckTree(unittest.TestCase):
    def test_reads_tracked_files_only_and_fails_on_a_fault(self):
        with tempfile.TemporaryDirectory() as root:
            def run(*words):
                return subprocess.run(words, cwd=root, capture_output=True, text=True, check=False,
                                      timeout=60)

            tool = pathlib.Path(__file__).with_name("check_words.py")
            run("git", "init", "-q")
            pathlib.Path(root, "clean.txt").write_text("fine\n")
            pathlib.Path(root, "untracked.txt").write_text("FIXME\n")  # check_words: ok
            run("git", "add", "clean.txt")
            self.assertEqual(run(sys.executable, tool, "--root", root).returncode, 0)
            run("git", "add", "untracked.txt")
            result = run(sys.executable, tool, "--root", root)
            self.assertEqual(result.returncode, 1)
            self.assertIn("untracked.txt:1:", result.stdout)


if __name__ == "__main__":
    unittest.main()
