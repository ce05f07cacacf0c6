"""Debian roots with newer tools than this machine has. Commands run inside; mounts live in a namespace of their own and end with
each command."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess

SUITES = ["forky", "sid"]


class Unavailable(Exception):
    """There is no root, and the reason."""


class DebianRoot:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def run(self, command, folders=(), **options):
        """Runs a shell command with folders of this machine, pairs of their place inside and here."""
        root = shlex.quote(str(self.folder))
        mounts = [f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
        for inside, here in folders:
            place = shlex.quote(f"{self.folder}{inside}")
            mounts.append(f"mkdir -p {place} && mount --bind {shlex.quote(str(here))} {place}")
        script = " && ".join([*mounts, f"exec chroot {root} sh -c {shlex.quote(command)}"])
        return subprocess.run(["unshare", "--mount", "sh", "-c", script], text=True, **options)


def make(folder, packages):
    """A root under `folder` with these packages, of the oldest suite that has them."""
    if os.geteuid() != 0:
        raise Unavailable("making a Debian root needs to run as root")
    for tool in ["debootstrap", "unshare", "chroot"]:
        if not shutil.which(tool):
            raise Unavailable(f"{tool} is not installed")
    mirror = debian_mirror()
    reasons = []
    for suite in SUITES:
        root = pathlib.Path(folder) / suite
        # Newer suites than debootstrap knows are made like sid.
        script = "/usr/share/debootstrap/scripts/sid"
        made = subprocess.run(["debootstrap", "--variant=minbase", suite, root, mirror, script], capture_output=True, text=True)
        if made.returncode != 0:
            reasons.append(f"debootstrap {suite}: {last_line(made.stdout)}")
            continue
        # The machine's way to its mirror (a proxy, say) is the root's. The package lists are debootstrap's, just fetched.
        (root / "etc/apt/apt.conf.d/00host").write_text(apt_settings())
        install = "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends " + " ".join(packages)
        installed = DebianRoot(root).run(install, capture_output=True)
        if installed.returncode == 0:
            return DebianRoot(root)
        reasons.append(f"apt-get install in {suite}: {last_line(installed.stderr)}")
    raise Unavailable("; ".join(reasons))


def apt_settings():
    dump = subprocess.run(["apt-config", "dump", "Acquire"], capture_output=True, text=True).stdout
    return "".join(line + "\n" for line in dump.splitlines() if re.match(r"Acquire::(http|https|ftp)::", line))


def debian_mirror():
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Origin: Debian", "Label: Debian"],
        capture_output=True,
        text=True,
    )
    sites = listed.stdout.split()
    if not sites:
        raise Unavailable("apt's configuration names no Debian mirror, or `apt-get update` never ran")
    return sites[0]


def last_line(text):
    lines = text.strip().splitlines()
    return lines[-1] if lines else "failed"
