#!/bin/sh
# Slurm's prolog: before a job starts, its nodes see to the image that the job names in its comment:
#
#     sbatch --comment=image=nvcr.io/nvidia/pytorch:24.01-py3 job.sh
#
# They do it as the job's user, with that user's logins and configuration, in the cache that fastpull's configuration
# names: if they share it, one of them downloads and the others wait. In slurm.conf:
#
#     Prolog=/etc/slurm/fastpull-prolog.sh
#     PrologFlags=Alloc
#     PrologEpilogTimeout=900
#
# A prolog that fails drains its node. This one does not: what is not there when the job starts, its own steps fetch, or
# say why they cannot.
FASTPULL=/opt/fastpull/bin/fastpull
PATIENCE_SECONDS=600

image=$(printf '%s\n' "$SLURM_JOB_COMMENT" | tr ' ,;' '\n\n\n' | sed -n 's/^image=//p' | head -n 1)
[ -n "$image" ] || exit 0

home=$(getent passwd "$SLURM_JOB_UID" | cut -d: -f6)
said=$(cd / && setpriv --reuid "$SLURM_JOB_UID" --regid "$SLURM_JOB_GID" --init-groups \
    env -i HOME="$home" PATH=/usr/bin:/bin FASTPULL_JOB="$SLURM_CLUSTER_NAME.$SLURM_JOB_ID.prolog" \
    timeout "$PATIENCE_SECONDS" "$FASTPULL" warm --quiet -- "$image" 2>&1) ||
    logger -t fastpull-prolog "job $SLURM_JOB_ID: $said"
exit 0
