"""`python -m calibnb.runs run.json` trains one run; torchrun starts it on each process."""
import sys

from calibnb.runs.run import main

if __name__ == "__main__":
    sys.exit(main())
