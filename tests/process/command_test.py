"""The command line itself: help, usage errors, no scheduler."""

import json
import os
import subprocess
import tempfile
import unittest

from sandbox import BIN_DIR, TRAINER

GODWIT = os.path.join(BIN_DIR, "godwit")
VERBS = ["run", "submit", "jobs", "status", "events", "logs", "explain", "preempt", "stop", "quotas",
         "nodes", "scheduler", "master", "agent", "ckpt", "ckpt ls", "ckpt show", "ckpt verify",
         "ckpt ledger"]


class CommandCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gw-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.environment = {k: v for k, v in os.environ.items()
                            if not k.startswith(("GODWIT_", "XDG_"))}
        self.environment.update({"TMPDIR": self.folder, "XDG_RUNTIME_DIR": self.folder})

    def godwit(self, *args):
        return subprocess.run([GODWIT, *args], capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL, env=self.environment, cwd=self.folder,
                              errors="surrogateescape", check=False)

    def assert_error(self, done, code, *parts):
        """One line on stderr that begins with "godwit: " and has all the parts."""
        self.assertEqual(done.returncode, code, done)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("godwit: "), done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr)


class CommandTest(CommandCase):
    def test_each_verb_has_help_with_an_example(self):
        for verb in VERBS:
            done = self.godwit(*verb.split(), "--help")
            self.assertEqual(done.returncode, 0, verb)
            self.assertIn(f"Usage: godwit {verb}", done.stdout)
            self.assertRegex(done.stdout, r"Example:\n  godwit " + verb)

    def test_version(self):
        self.assertRegex(self.godwit("--version").stdout, r"^godwit \d+\.\d+\.\d+\n$")

    def test_what_is_unknown_names_the_nearest_known(self):
        self.assert_error(self.godwit("submitt"), 2, "'submitt'", "'submit'")
        self.assert_error(self.godwit("ckpt", "verfy", "x"), 2, "'verfy'", "'verify'")
        self.assert_error(self.godwit("submit", "--quotta", "a", "--", "true"), 2, "'--quotta'",
                          "'--quota'")
        self.assert_error(self.godwit("frobnicate"), 2, "'frobnicate'", "allowed", "submit")
        self.assert_error(self.godwit("jobs", "extra"), 2, "'extra'")
        self.assert_error(self.godwit("scheduler", "--state", "x"), 2, "'--state'", "'--state-dir'")

    def test_program_without_the_dashes_is_told_about_them(self):
        for verb in ("run", "submit"):
            self.assert_error(self.godwit(verb, "train", "--steps", "5"), 2,
                              f"godwit {verb} -- train")

    def test_wrong_values_say_what_is_allowed(self):
        self.assert_error(self.godwit("preempt", "j", "--grace", "5"), 2, "--grace", "'5'",
                          "allowed")
        self.assert_error(self.godwit("submit", "--workers", "3:1", "--", "true"), 2,
                          "--workers", "3:1", "MIN:MAX")
        self.assert_error(self.godwit("run", "--nproc-per-node", "x", "--", "true"), 2,
                          "--nproc-per-node", "'x'", "whole number")
        self.assert_error(self.godwit("logs", "j", "--stream", "x"), 2, "--stream", "out, err, both")
        for value in ("-1", "9" * 30, "x"):
            self.assert_error(self.godwit("events", "--after", value), 2, "--after", value,
                              "whole number")
        self.assert_error(self.godwit("jobs", "--scheduler", ""), 2, "--scheduler", "got ''")

    def test_each_flag_of_run_refuses_what_it_has_no_meaning_for(self):
        empty, negative, huge, text, no_text = "", "-1", "9" * 30, "abc", "\udcff"
        counts = [empty, negative, huge, text, "1.5", "0x1", " 1", no_text]
        times = counts + ["5", "1e3s", "-5s", "9" * 15 + "d"]
        names = [empty, no_text, "a\nb"]
        refused = {
            "--nproc-per-node": counts + ["0", "65"],
            "--nproc_per_node": counts + ["0", "65"],
            "--max-restarts": counts + ["1000001"],
            "--max_restarts": counts + ["1000001"],
            "--shutdown-timeout": times,
            "--run-id": names + ["x" * 257],
            "--dir": names,
            "--log-dir": [empty],
            "--run-dir": [empty],
        }
        for flag, values in refused.items():
            for value in values:
                with self.subTest(flag=flag, value=value):
                    done = self.godwit("run", flag, value, "--", "true")
                    self.assert_error(done, 2, flag.replace("_", "-"), "got ", "allowed")
        self.assertEqual(os.listdir(self.folder), [])

    def test_paths_that_cannot_be_made_are_one_line(self):
        for flag in ("--log-dir", "--run-dir"):
            for value in ("/proc/here", "x" * 5000):
                with self.subTest(flag=flag, value=value[:20]):
                    done = self.godwit("run", flag, value, "--", "true")
                    self.assertEqual(done.returncode, 78, done)
                    self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                    self.assertIn(value, done.stderr)

    def test_what_is_missing_is_named(self):
        self.assert_error(self.godwit(), 2, "no verb")
        self.assert_error(self.godwit("run"), 2, "no command", "--")
        self.assert_error(self.godwit("submit"), 2, "no command", "--")
        self.assert_error(self.godwit("status"), 2, "JOB")
        self.assert_error(self.godwit("jobs", "--", "x"), 2, "command")

    def test_without_a_scheduler_each_verb_says_so(self):
        for verb in (["jobs"], ["status", "j"], ["quotas"], ["nodes"], ["stop", "j"],
                     ["events"], ["submit", "--", "true"]):
            self.assert_error(self.godwit(*verb), 1, "no scheduler answers at unix:" + self.folder,
                              "godwit scheduler")

    def test_scheduler_that_was_started_just_before_is_waited_for(self):
        jobs = subprocess.Popen([GODWIT, "jobs"], stdin=subprocess.DEVNULL, env=self.environment,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        scheduler = subprocess.Popen([GODWIT, "scheduler", "--state-dir",
                                      os.path.join(self.folder, "state")], env=self.environment,
                                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
        try:
            _, errors = jobs.communicate(timeout=60)
            self.assertEqual(jobs.returncode, 0, errors)
        finally:
            scheduler.terminate()
            scheduler.wait(60)

    def test_job_file_with_an_unknown_key_is_refused(self):
        path = os.path.join(self.folder, "job.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"comand": ["true"]}, f)
        self.assert_error(self.godwit("submit", "-f", path), 2, path, "'comand'", "'command'")

    def test_ckpt_verbs_name_a_directory_that_holds_no_checkpoints(self):
        for verb in ("ls", "show", "verify", "ledger"):
            self.assert_error(self.godwit("ckpt", verb, self.folder), 1, self.folder,
                              "holds no checkpoints")
            self.assert_error(self.godwit("ckpt", verb, "nowhere"), 1, self.folder + "/nowhere",
                              "does not exist")


class CkptTest(CommandCase):
    """Verbs on the checkpoints of a run of the trainer, alone."""

    def train(self, *args):
        self.dir = os.path.join(self.folder, "ckpt")
        subprocess.run([TRAINER, "--dir", self.dir, "--steps", "100", "--audit",
                        os.path.join(self.folder, "audit"), *args], check=True, timeout=60,
                       env=self.environment, stdout=subprocess.DEVNULL)

    def json(self, *args):
        done = self.godwit(*args, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_ls_and_show_tell_of_the_newest_save(self):
        self.train()
        saves = self.json("ckpt", "ls", self.dir)
        self.assertEqual(saves[0]["step"], 100)
        self.assertTrue(saves[0]["committed"] and saves[0]["in_lineage"])
        shown = self.json("ckpt", "show", self.dir)
        self.assertEqual(shown["save"], saves[0]["save"])
        self.assertTrue(shown["intact"])
        self.assertEqual(shown["sampler"], {"pass": 1, "position": 192, "dataset_size": 1000})
        self.assertIn(saves[0]["save"], self.godwit("ckpt", "ls", self.dir).stdout)
        self.assertIn("every chunk", self.godwit("ckpt", "show", self.dir, "--save", "100").stdout)

    def test_verify_finds_one_flipped_byte(self):
        self.train()
        self.assertEqual(self.godwit("ckpt", "verify", self.dir).returncode, 0)
        shown = self.json("ckpt", "show", self.dir)
        pack = shown["packs"][0]["path"]
        with open(pack, "r+b") as f:
            f.seek(os.path.getsize(pack) // 2)
            byte = f.read(1)[0]
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte ^ 1]))
        done = self.godwit("ckpt", "verify", self.dir)
        self.assertEqual(done.returncode, 1)
        self.assertIn(shown["save"] + "  DAMAGED", done.stdout)
        self.assertIn("damaged", done.stderr)

    def test_ledger_agrees_with_the_audit_log_and_finds_a_lie_in_it(self):
        self.train()
        audit = os.path.join(self.folder, "audit")
        checked = self.json("ckpt", "ledger", self.dir, "--audit", audit)
        self.assertEqual(checked["steps"], 100)
        self.assertEqual(checked["audit"]["samples"], 1192)
        [log] = os.listdir(audit)
        path = os.path.join(audit, log)
        with open(path, encoding="utf-8") as f:
            lines = f.read().splitlines()
        words = lines[50].split()
        words[7], words[8] = words[8], words[7]
        lines[50] = " ".join(words)
        with open(path, "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
        self.assert_error(self.godwit("ckpt", "ledger", self.dir, "--audit", audit), 1, log + ":51")


if __name__ == "__main__":
    unittest.main()
