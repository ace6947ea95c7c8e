"""Make a release (`make release VERSION=1.2.0`): version, changelog, build, check, commit and tag; publish nothing.

The tree must be clean. If a step fails, the files are as before, and there is no commit and no tag.
"""
import re
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

FILES = "settings.ini", "calibnb/__init__.py", "CHANGELOG.md"
WANTED = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


def git(root, *args):
    return subprocess.run(["git", *args], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def check(root, version):
    "Exit with the reason if this version cannot be released."
    if not WANTED.fullmatch(version):
        raise SystemExit(f"VERSION: {version!r}, want three numbers, as in VERSION=1.2.0")
    if git(root, "status", "--porcelain"):
        raise SystemExit("the tree is not clean; commit or remove what `git status` lists")
    if git(root, "tag", "--list", f"v{version}"):
        raise SystemExit(f"VERSION: the tag v{version} exists; give a later version")


def changed(root, version, today):
    "Return path -> new text of the three files; the entries under Unreleased become the entries of the version."
    settings, package, changes = (root/name for name in FILES)
    head, mark, rest = changes.read_text().partition("## Unreleased\n")
    if not rest.partition("\n## ")[0].strip():
        raise SystemExit("CHANGELOG.md: no entry under '## Unreleased'; write what changes for the user")
    return {settings: re.sub(r"(?m)^version = .*", f"version = {version}", settings.read_text()),
            package: re.sub(r'(?m)^__version__ = .*', f'__version__ = "{version}"', package.read_text()),
            changes: f"{head}{mark}\n## {version} ({today})\n{rest}"}


def build(root):
    for name in "build", "dist":
        shutil.rmtree(root/name, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build"], cwd=root, check=True)
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *(root/"dist").iterdir()], check=True)


def release(root, version, today=None, build=build):
    check(root, version)
    try:
        for path, text in changed(root, version, today or date.today()).items():
            path.write_text(text)
        build(root)
    except BaseException:
        git(root, "checkout", "--", *FILES)
        raise
    git(root, "commit", "-m", f"Version {version}", "--", *FILES)
    git(root, "tag", "-a", f"v{version}", "-m", f"calibnb {version}")


if __name__ == "__main__":
    release(Path(__file__).parents[1], *(sys.argv[1:] or [""]))
    print("dist/ is ready. To publish: git push --follow-tags, then python -m twine upload dist/*")
