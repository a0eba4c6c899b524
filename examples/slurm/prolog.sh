#!/bin/sh
# Slurm prolog: before a job starts, its nodes fetch the image that the job names in its comment:
#
#     sbatch --comment=image=nvcr.io/nvidia/pytorch:24.01-py3 job.sh
#
# It runs as the job's user, with that user's logins and configuration, and fills the cache that fastpull's configuration
# names. If the nodes share that cache, one node downloads and the others wait. In slurm.conf:
#
#     Prolog=/etc/slurm/fastpull-prolog.sh
#     PrologFlags=Alloc
#     PrologEpilogTimeout=900
#
# A prolog that fails drains its node, so this one never fails. If the image is missing, the job's steps fetch it, or
# report the error.
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
