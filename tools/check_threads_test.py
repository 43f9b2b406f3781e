#!/usr/bin/env python3
"""check_threads.py turns g++'s commands into clang's, and clang finds an unguarded access."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

import check_threads


class ClangCommand(unittest.TestCase):
    def test_keeps_includes_and_definitions_and_drops_outputs(self):
        command = check_threads.clang_command(
            "/usr/bin/ccache /usr/bin/c++ -DX=1 -I/a -std=c++20 -fsanitize=thread -o a.o "
            "-MD -MT a.o -MF a.d -c /t/a.cc", "/t/a.cc")
        for kept in ("-DX=1", "-I/a", "-std=c++20", "-fsyntax-only", "-Wthread-safety", "-Werror"):
            self.assertIn(kept, command)
        for dropped in ("-o", "a.o", "a.d", "-MD", "-c", "-fsanitize=thread", "/usr/bin/ccache"):
            self.assertNotIn(dropped, command)
        self.assertEqual(command.count("/t/a.cc"), 1)

    @unittest.skipUnless(shutil.which("clang++"), "clang++ is not installed")
    def test_an_access_without_the_lock_fails(self):
        text = ('#include "base/mutex.h"\n'
                "struct Account {\n"
                "  void Add() { LOCK ++sum; }\n"
                "  godwit::Mutex mutex;\n"
                "  int sum GUARDED_BY(mutex) = 0;\n"
                "};\n"
                "void Use(Account& account) { account.Add(); }\n")
        for lock, passes in (("godwit::MutexLock lock(mutex);", True), ("", False)):
            with tempfile.TemporaryDirectory() as folder:
                source = pathlib.Path(folder, "a.cc")
                source.write_text(text.replace("LOCK", lock), encoding="utf-8")
                command = check_threads.clang_command(
                    f"c++ -std=c++20 -I{check_threads.ROOT} -c {source}", str(source))
                result = subprocess.run(command, capture_output=True, text=True, check=False,
                                        timeout=60)
                self.assertEqual(result.returncode == 0, passes, result.stderr)


if __name__ == "__main__":
    unittest.main()
