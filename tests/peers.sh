#!/bin/sh
# Programs that tests and benchmarks compare with. As root on Debian, this installs the missing ones. Otherwise it prints
# their packages, and tests that need them are skipped.
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
    echo "some programs are missing and their tests will be skipped; run: apt-get install$packages" >&2
fi
