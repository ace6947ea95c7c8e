"""The command line, with trainings that save after a step and go on once the file CALIBNB_TEST_GO exists."""
import os
import sys
import time
from pathlib import Path

import calibnb.sweep.engines
from calibnb.train.checkpoint import Saver
from calibnb.cli import main

make_run, after_batch = calibnb.sweep.engines.make_run, Saver.after_batch


def save_and_hold(self, last=False):
    "Saves, then waits for the file, so that no training is over before a test could interrupt it."
    go = Path(os.environ["CALIBNB_TEST_GO"])
    if not go.exists():
        self._save()
    while not go.exists() and not self.signals:
        time.sleep(.01)
    after_batch(self, last)


def make_run_held(config, root, send):
    "Trains in a process of its own, where `Saver` has to be replaced too."
    Saver.after_batch = save_and_hold
    make_run(config, root, send=send)


def main_held(args=None):
    calibnb.sweep.engines.make_run = make_run_held
    return main(args)


if __name__ == "__main__":
    sys.exit(main_held())
