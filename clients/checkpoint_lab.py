"""Checkpoints that are one file: of the lab's own trainer, with a SHA-256 beside it, and of unknown trainers.

It imports the standard library only: it runs in the process that reads a file system.
"""

from relight.clients.checkpoint_folders import judge_files
from relight.clients.checkpoint_tensors import Findings
from relight.clients.checkpoint_tree import Content, Steps, Tree

DIGEST = ".sha256"
_DIGITS = 64


def judge_lab(tree: Tree, content: Content, found: Findings) -> Steps[None]:
    """Judge one `step_000120.npz` of the lab: the digest is written last."""
    yield from judge_files(tree, content, found)
    try:
        digest = tree.text(content.path + DIGEST, 256).strip()
    except FileNotFoundError:
        found.bad.append(f"{content.name}{DIGEST}, which is written last, is not there")
        return
    except OSError as error:
        found.open.append(f"{content.name}{DIGEST}: {error.strerror or error}")
        return
    if len(digest) != _DIGITS or set(digest) - set("0123456789abcdef"):
        found.bad.append(f"{content.name}{DIGEST} holds no SHA-256")
    else:
        found.good.append("its own directory is complete, and its SHA-256 is there")


def judge_file(tree: Tree, content: Content, found: Findings) -> Steps[None]:
    """Judge one file by its own directory or header."""
    sound = yield from judge_files(tree, content, found)
    if sound:
        found.good.append("its own directory is complete")
