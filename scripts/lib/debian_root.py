"""Roots of other releases of Debian and Ubuntu than this machine's. Commands run inside; mounts live in a namespace of their own
and end with each command."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess

SUITES = ["forky", "sid"]
# Of Ubuntu's packages, those that examples need are in universe, which its images have.
UBUNTU_SUITES = ["noble"]
UBUNTU_COMPONENTS = "main,universe"
UBUNTU_KEYRING = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"
# For a machine whose apt configuration names no mirror of that distribution.
PUBLIC_UBUNTU_MIRROR = "http://archive.ubuntu.com/ubuntu"


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
    require_tools()
    reasons = []
    for suite in SUITES:
        try:
            root = bare(pathlib.Path(folder) / suite, suite)
        except Unavailable as why:
            reasons.append(str(why))
            continue
        # The package lists are debootstrap's, just fetched.
        install = "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends " + " ".join(packages)
        installed = root.run(install, capture_output=True)
        if installed.returncode == 0:
            return root
        reasons.append(f"apt-get install in {suite}: {last_line(installed.stderr)}")
    raise Unavailable("; ".join(reasons))


def require_tools():
    if os.geteuid() != 0:
        raise Unavailable("making a Debian root needs to run as root")
    for tool in ["debootstrap", "unshare", "chroot"]:
        if not shutil.which(tool):
            raise Unavailable(f"{tool} is not installed")


def bare(folder, suite):
    """A root with what this suite requires, and this machine's way to its mirror (a proxy, say)."""
    if suite in UBUNTU_SUITES:
        if not pathlib.Path(UBUNTU_KEYRING).exists():
            raise Unavailable(f"debootstrap {suite}: no {UBUNTU_KEYRING}, which the package ubuntu-keyring has")
        mirror, like = mirror_of("Ubuntu") or PUBLIC_UBUNTU_MIRROR, "gutsy"
        options = [f"--components={UBUNTU_COMPONENTS}", f"--keyring={UBUNTU_KEYRING}"]
    else:
        mirror, like, options = mirror_of("Debian"), "sid", []
        if not mirror:
            raise Unavailable("apt's configuration names no Debian mirror, or `apt-get update` never ran")
    # Newer suites than debootstrap knows are made like these.
    script = f"/usr/share/debootstrap/scripts/{like}"
    # Mounts of one that is killed end with it, too: a later removal of the folder must not reach into them.
    command = ["unshare", "--mount", "debootstrap", "--variant=minbase", *options, suite, folder, mirror, script]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode != 0:
        raise Unavailable(f"debootstrap {suite}: {last_line(made.stdout)}")
    (pathlib.Path(folder) / "etc/apt/apt.conf.d/00host").write_text(apt_settings())
    return DebianRoot(folder)


def apt_settings():
    dump = subprocess.run(["apt-config", "dump", "Acquire"], capture_output=True, text=True).stdout
    return "".join(line + "\n" for line in dump.splitlines() if re.match(r"Acquire::(http|https|ftp)::", line))


def mirror_of(distribution):
    """The first that this machine's apt uses; None if there is none."""
    targets = ["Created-By: Packages", f"Origin: {distribution}", f"Label: {distribution}"]
    listed = subprocess.run(["apt-get", "indextargets", "--format", "$(SITE)", *targets], capture_output=True, text=True)
    return next(iter(listed.stdout.split()), None)


def last_line(text):
    lines = text.strip().splitlines()
    return lines[-1] if lines else "failed"
