#!/bin/sh
# Check that an interpreter can create virtual environments and build extensions. As root on Debian, this installs the
# missing packages; otherwise it prints them.
python=$1

can_build() {
    command -v gcc >/dev/null && "$python" - <<'PROGRAM' 2>/dev/null
import ensurepip, os, sys, sysconfig, venv
sys.exit(sys.version_info < (3, 11) or not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))
PROGRAM
}

can_build && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
        gcc libc6-dev python3 python3-dev python3-venv >/dev/null && can_build && exit 0
fi
echo "building fastpull needs Python 3.11 or later, its headers and gcc; run: apt-get install gcc python3-dev python3-venv" >&2
exit 1
