"""Stands in for one of Slurm's commands, and does to a call of it what a file in the folder of troubles says.

    python3 -IS chaos_liar.py TROUBLES NAME ARGUMENT...

A trouble is a file with the lines of `chaos_commands.Trouble`, used up by the call that it meets. Without one that
fits, the command runs as ever. Needs the standard library only: it is run by users who can reach nothing of ours.
"""

import json
import os
import re
import subprocess
import sys
import time

TIMED_OUT = "slurm_receive_msg: Socket timed out on send/recv operation"


def main(folder: str, name: str, arguments: list[str]) -> int:
    """Run it, or do worse."""
    command = [f"/usr/bin/{name}", *arguments]
    trouble = take(folder, " ".join([name, *arguments]))
    how, for_s = trouble.get("how"), float(trouble.get("for_s", 0))
    if how == "slow":
        time.sleep(for_s)
    if how in {None, "slow"}:
        os.execv(command[0], command)  # noqa: S606 - the command that was meant
    if how == "hang":
        time.sleep(for_s)
        return 1
    done = subprocess.run(command, capture_output=True, check=False)
    if how == "garble":
        sys.stdout.buffer.write(done.stdout[: len(done.stdout) // 3])
        return 0
    if how == "late":
        time.sleep(for_s)
        sys.stdout.buffer.write(done.stdout)
        sys.stderr.buffer.write(done.stderr)
        return done.returncode
    print(TIMED_OUT, file=sys.stderr)
    return 1


def take(folder: str, call: str) -> dict[str, str]:
    """Use up the first trouble that fits; two calls at once do not meet the same."""
    for name in sorted(os.listdir(folder)):  # noqa: PTH208 - pathlib takes longer to load than this runs
        path = os.path.join(folder, name)  # noqa: PTH118
        try:
            with open(path, encoding="utf-8") as file:  # noqa: PTH123
                trouble: dict[str, str] = json.load(file)
            if re.search(trouble["call"], call):
                os.unlink(path)  # noqa: PTH108
                return trouble
        except FileNotFoundError:
            continue  # another call was faster
    return {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
