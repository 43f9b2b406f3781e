#!/usr/bin/env python3
"""tools/setup installs what is missing and no more; all that it calls is a fake here."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent

# Each fake writes its name and arguments into $FAKES/calls.
DPKG_QUERY = """
echo "dpkg-query $*" >>"$FAKES/calls"
shift 3
for name; do
  case $name in -*) continue ;; esac
  grep -qx "$name" "$FAKES/installed" && echo "ii  $name"
done
exit 1
"""
APT_GET = """
echo "apt-get $*" >>"$FAKES/calls"
[ ! -e "$FAKES/apt-fails" ] || { seq 1 40 | sed 's/^/apt line /'; exit 100; }
case "$*" in *" install "*) printf '%s\\n' "$@" >>"$FAKES/installed" ;; esac
"""
PYTHON = """
echo "python $*" >>"$FAKES/calls"
[ "$1" != -c ] || exit 0
case "$*" in
  "-m venv --clear "*)
    rm -rf "$4"
    mkdir -p "$4/bin"
    cp "$0" "$4/bin/python"
    ;;
  *"pip install"*)
    packages=$(dirname "$0")/../lib/python3.11/site-packages
    mkdir -p "$packages/torch/lib" "$packages/nvidia/cu13/lib"
    touch "$packages/torch/lib/libtorch_cpu.so"
    touch "$packages/nvidia/cu13/lib/libcudart.so.13" "$packages/nvidia/cu13/lib/libcupti.so.13"
    ;;
esac
"""


class Setup(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="godwit-setup-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.root = self.folder / "tree with space"
        (self.root / "tools").mkdir(parents=True)
        (self.root / "third_party").mkdir()
        shutil.copy(TOOLS / "setup", self.root / "tools/setup")
        shutil.copytree(TOOLS / "lib", self.root / "tools/lib")
        self.write_list("# Building.\ncmake\n\nlibgrpc++-dev\nclang check\n")
        (self.root / "third_party/requirements.txt").write_text("torch==1\n")
        self.fakes = self.folder / "fakes"
        self.fakes.mkdir()
        (self.fakes / "installed").write_text("")
        self.fake("dpkg-query", DPKG_QUERY)
        self.fake("apt-get", APT_GET)
        self.fake("python3", PYTHON)
        self.be_root(True)

    def fake(self, name, body):
        path = self.fakes / name
        path.write_text("#!/bin/bash\n" + body)
        path.chmod(0o755)

    def be_root(self, root):
        self.fake("id", f"echo {0 if root else 1000}")

    def write_list(self, text):
        (self.root / "third_party/debian.txt").write_text(text)

    def environment(self):
        return dict(os.environ, PATH=f"{self.fakes}:{os.environ['PATH']}", FAKES=str(self.fakes),
                    GODWIT_PYTHON=str(self.fakes / "python3"))

    def run_setup(self, *arguments):
        (self.fakes / "calls").write_text("")
        return subprocess.run([self.root / "tools/setup", *arguments], env=self.environment(),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False, timeout=60)

    def calls(self, name):
        return [line for line in (self.fakes / "calls").read_text().splitlines()
                if line.startswith(name + " ")]

    def assert_ok(self, result):
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_installs_what_is_missing_and_a_second_run_does_nothing(self):
        self.assert_ok(self.run_setup())
        self.assertEqual(self.calls("apt-get")[-1].split()[-2:], ["cmake", "libgrpc++-dev"])
        self.assertIn("--require-hashes", self.calls("python")[-1])
        self.assertIn("--no-deps", self.calls("python")[-1])
        second = self.run_setup()
        self.assert_ok(second)
        self.assertEqual(second.stdout, "")
        self.assertEqual(len(self.calls("dpkg-query")), 1)
        self.assertEqual(self.calls("apt-get") + self.calls("python"), [])

    def test_installs_only_the_package_that_was_removed(self):
        self.assert_ok(self.run_setup())
        (self.fakes / "installed").write_text("cmake\n")
        self.assert_ok(self.run_setup())
        self.assertTrue(self.calls("apt-get")[-1].endswith("--no-install-recommends libgrpc++-dev"))
        self.assertEqual(self.calls("python"), [])

    def test_notices_a_changed_list_of_packages(self):
        self.assert_ok(self.run_setup())
        self.write_list("cmake\nlibgrpc++-dev\nlibnew-dev\n")
        self.assert_ok(self.run_setup())
        self.assertTrue(self.calls("apt-get")[-1].endswith(" libnew-dev"))

    def test_makes_the_environment_again_when_its_list_or_a_library_of_it_is_gone(self):
        self.assert_ok(self.run_setup())
        (self.root / "third_party/requirements.txt").write_text("torch==2\n")
        self.assert_ok(self.run_setup())
        self.assertEqual(self.calls("apt-get"), [])
        self.assertIn("pip install", self.calls("python")[-1])
        for library in (self.root / ".venv").rglob("libcudart*"):
            library.unlink()
        self.assert_ok(self.run_setup())
        self.assertIn("pip install", self.calls("python")[-1])
        shutil.rmtree(self.root / ".venv")
        self.assert_ok(self.run_setup())
        self.assertIn("pip install", self.calls("python")[-1])

    def test_an_interrupted_install_is_done_again(self):
        self.assert_ok(self.run_setup())
        (self.root / ".venv/godwit-stamp").unlink()
        self.assert_ok(self.run_setup())
        self.assertIn("-m venv --clear", "\n".join(self.calls("python")))

    def test_what_only_the_checks_need_comes_only_with_check(self):
        self.assert_ok(self.run_setup())
        self.assertNotIn("clang", (self.fakes / "installed").read_text().split())
        self.assert_ok(self.run_setup("--check"))
        self.assertTrue(self.calls("apt-get")[-1].endswith(" clang"))

    def test_without_root_and_sudo_it_prints_the_one_command_and_stops(self):
        self.be_root(False)
        self.fake("sudo", "exit 1")
        result = self.run_setup()
        self.assertEqual(result.returncode, 3)
        self.assertIn("  apt-get update && apt-get install -y --no-install-recommends "
                      "cmake libgrpc++-dev\n", result.stderr)
        self.assertEqual(self.calls("apt-get") + self.calls("python"), [])

    def test_without_root_it_uses_sudo(self):
        self.be_root(False)
        self.fake("sudo", 'echo "sudo $*" >>"$FAKES/calls"\n[ "$1" != -n ] || shift\n"$@"\n')
        self.assert_ok(self.run_setup())
        self.assertIn("apt-get", self.calls("sudo")[-1])
        self.assertIn("cmake", (self.fakes / "installed").read_text().split())

    def test_without_root_it_needs_no_sudo_when_no_package_is_missing(self):
        self.be_root(False)
        self.fake("sudo", "exit 1")
        (self.fakes / "installed").write_text("cmake\nlibgrpc++-dev\n")
        self.assert_ok(self.run_setup())

    def test_a_failed_step_prints_its_last_lines_and_where_the_log_is(self):
        (self.fakes / "apt-fails").touch()
        result = self.run_setup()
        self.assertEqual(result.returncode, 100)
        self.assertIn("apt line 40", result.stderr)
        self.assertIn("apt line 21", result.stderr)
        self.assertNotIn("apt line 20\n", result.stderr)
        log = self.root / "build/setup/apt-update.log"
        self.assertIn(str(log), result.stderr)
        self.assertIn("apt line 1\n", log.read_text())

    def test_a_package_that_does_not_get_installed_is_named(self):
        self.fake("apt-get", "exit 0")
        result = self.run_setup()
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("still missing", result.stderr)
        self.assertIn("libgrpc++-dev", result.stderr)

    def test_an_unknown_argument_or_group_is_refused(self):
        self.assertIn("allowed: --check", self.run_setup("--chek").stderr)
        self.write_list("cmake tests\n")
        result = self.run_setup()
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("got group 'tests'", result.stderr)

    def test_runs_at_the_same_time_install_once(self):
        self.fake("apt-get", APT_GET.replace(
            'case "$*"',
            'for _ in {1..6000}; do [ ! -e "$FAKES/go" ] || break; sleep 0.01; done\ncase "$*"'))
        outputs = [self.folder / "first", self.folder / "second"]
        runs = []
        for output in outputs:
            with output.open("w") as file:
                runs.append(subprocess.Popen([self.root / "tools/setup"], env=self.environment(),
                                             stdin=subprocess.DEVNULL, stdout=file,
                                             stderr=subprocess.STDOUT))
        # The one that waits says so; only then may the other go on.
        deadline = time.monotonic() + 60
        while not any("waiting for it" in output.read_text() for output in outputs):
            self.assertLess(time.monotonic(), deadline)
        (self.fakes / "go").touch()
        for run in runs:
            self.assertEqual(run.wait(60), 0)
        self.assertEqual(sum(" install " in call for call in self.calls("apt-get")), 1)


if __name__ == "__main__":
    unittest.main()
