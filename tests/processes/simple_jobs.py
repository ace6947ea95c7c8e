"""Jobs that programs of the tests ask for; they import nothing heavy, so that such a program begins at once."""
import multiprocessing
import os
import signal
import time


def sleep(seconds, path, tell):
    path.write_text(str(os.getpid()))
    time.sleep(seconds)


def add_up(n, tell):
    import torch
    return torch.get_num_threads(), torch.ones(n).sum().item()


def outlive(file, tell):
    "Goes on after its parent is gone, and would have something to say."
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    file.write_text(str(os.getpid()))
    while multiprocessing.parent_process().is_alive():
        time.sleep(0.01)
    tell("is anybody there?")
    return "an answer"
