/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The remover of what killed writers left (CMT-15): files under temporary names, data files of which such an index
 * proves that no checkpoint has them, and temporary directories. Their locks show which writers are alive.
 */
#ifndef CKPTFMT_WRITE_SWEEP_H
#define CKPTFMT_WRITE_SWEEP_H

#include "write/commit.h"

/* On a fresh prefix, the most names in the directory with which a save looks for orphaned files: a listing of a million
 * names takes longer than a small save. */
enum { CF_SWEEP_NAMES_MAX = 4096 };

/* Removes what killed writers of the prefix left, before a save writes its first file: the disk may be full of it.
 * `directories`: also the temporary directories. Best effort: does nothing if another process has the directory's
 * lock. REQUIRES: cf_commit_observe. */
void cf_sweep_before_save(const cf_commit *commit, bool directories);

#endif
