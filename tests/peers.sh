#!/bin/sh
# The programs that tests and benchmarks compare with: as root on Debian those that are missing are installed, otherwise
# they are named, and the tests that need them are skipped.
packages=""
for pair in buildah:buildah bwrap:bubblewrap ch-run:charliecloud crun:crun debootstrap:debootstrap \
    docker-registry:docker-registry htpasswd:apache2-utils mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs \
    mksquashfs:squashfs-tools mpirun.openmpi:openmpi-bin munged:munge newuidmap:uidmap nginx:nginx-light \
    openssl:openssl podman:podman runc:runc skopeo:skopeo slurmctld:slurmctld slurmd:slurmd srun:slurm-client \
    squashfuse:squashfuse strace:strace systemd-nspawn:systemd-container tar:tar tar2sqfs:squashfs-tools-ng \
    umoci:umoci; do
    command -v "${pair%%:*}" >/dev/null || [ -x "/usr/sbin/${pair%%:*}" ] || packages="$packages ${pair#*:}"
done
[ -z "$packages" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing$packages"
    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $packages \
        ca-certificates >/dev/null
else
    echo "not installed, so that some tests are skipped (apt-get install$packages)" >&2
fi
