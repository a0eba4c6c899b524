"""``python -m fastpull``: the command, where its script is not on the path."""

from fastpull.cli import script

if __name__ == "__main__":
    script()
