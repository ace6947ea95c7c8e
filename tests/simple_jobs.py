"""Jobs that programs of the tests ask for; they import nothing heavy, so that such a program begins at once."""
import multiprocessing
import os
import signal
import sys
import time


def sleep(seconds, path, send):
    path.write_text(str(os.getpid()))
    time.sleep(seconds)


def add_up(n, send):
    import torch
    return torch.get_num_threads(), torch.ones(n).sum().item()


def outlive(file, send):
    "Outlive the parent, then send a message and return a value."
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    file.write_text(str(os.getpid()))
    while multiprocessing.parent_process().is_alive():
        time.sleep(0.01)
    send("is anybody there?")
    return "an answer"


def call(job, *args, send):
    return job(*args, send=send)


BEGIN = """import pathlib, sys
sys.path.insert(0, sys.argv[1])
import simple_jobs
from calibnb.processes.pool import in_processes
"""


def script(path, *lines):
    "Write a program that does `lines` as the main process; return the command that runs it."
    path.write_text(BEGIN + "if __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in lines))
    return [sys.executable, str(path), os.path.dirname(__file__)]
