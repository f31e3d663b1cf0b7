/* SPDX-License-Identifier: Apache-2.0 */
#include "write/sweep.h"

#include "base/memory.h"
#include "read/reader.h"

#include <stdlib.h>
#include <string.h>

enum { TEMPORARY_DIGITS = 16, FOREIGN_DIGITS_MAX = 20, NUMBER_DIGITS = 5, NUMBER_DIGITS_MAX = 10 };

#define INDEX_END ".index"
#define INTENT_END ".merge-intent"
#define TEMPORARY_MARK ".tempstate"
#define DIRECTORY_MARK "_temp_"
#define LOCK_NAME "writer.lock"

/* Only directories of the file system are swept, so calls go to cf_local directly. */

/* ---- names ----------------------------------------------------------------------------------------------- */

typedef enum kind {
	NO_KIND, INDEX, DATA, INTENT,
	TEMPORARY,                  /* of one of the above */
	OTHER_TEMPORARY,            /* of another file */
	CLAIM,                      /* a lock file by which registered savers reserve the name */
	DIRECTORY,
	FOREIGN                     /* TensorFlow may be writing the checkpoint, or was killed while it did */
} kind;

/* When a file is removed. PROVEN: a data file of which an index under a temporary name, itself LAST, proves that no
 * checkpoint has it. */
typedef enum step { KEPT, AT_ONCE, PROVEN, LAST } step;

typedef struct entry {
	const char *name;
	size_t owner_size;          /* the name of its checkpoint, or of the other file, is the beginning of `name` */
	kind kind;
	int32_t count;              /* N of a data file, or of the header of a temporary index; 0: none */
	step step;
} entry;

/* A part of a name. */
typedef struct text {
	const char *at;
	size_t size;
} text;

static bool ends_with(text name, const char *end)
{
	size_t size = strlen(end);
	return name.size >= size && memcmp(name.at + name.size - size, end, size) == 0;
}

static size_t digits_from(text name, size_t at, const char *digits)
{
	size_t count = 0;
	while (at + count < name.size && strchr(digits, name.at[at + count]) != NULL)
		count++;
	return count;
}

/* Where the last `mark` in the name begins; its size if there is none. */
static size_t find_mark(text name, const char *mark)
{
	size_t size = strlen(mark);
	for (size_t at = name.size; at >= size; at--)
		if (memcmp(name.at + at - size, mark, size) == 0)
			return at - size;
	return name.size;
}

/* A number as writers spell it; -1 of other text. */
static int64_t take_number(text name, size_t *at)
{
	size_t digits = digits_from(name, *at, "0123456789");
	int64_t value = 0;
	if (digits < NUMBER_DIGITS || digits > NUMBER_DIGITS_MAX || (digits > NUMBER_DIGITS && name.at[*at] == '0'))
		return -1;
	for (size_t end = *at + digits; *at < end; (*at)++)
		value = value * 10 + (name.at[*at] - '0');
	return value;
}

/* A data file, of shard `shard` of `count`: the size of its prefix; `name.size` of any other name. */
static size_t parse_data(text name, int64_t *shard, int64_t *count)
{
	size_t mark = find_mark(name, ".data-"), at = mark + 6;
	*shard = mark == name.size ? -1 : take_number(name, &at);
	if (*shard < 0 || name.size - at < 4 || memcmp(name.at + at, "-of-", 4) != 0)
		return name.size;
	at += 4;
	*count = take_number(name, &at);
	return *count < 0 || at != name.size ? name.size : mark;
}

/* A temporary file: the size of the final name; `name.size` of any other name. */
static size_t parse_temporary(text name, bool *foreign)
{
	bool ignored;
	size_t first, mark = find_mark(name, TEMPORARY_MARK), at = mark + sizeof TEMPORARY_MARK - 1;
	size_t size = mark == name.size ? 0 : name.size - at;
	bool ours = size == TEMPORARY_DIGITS && name.at[at] >= 'a' && digits_from(name, at, "0123456789abcdef") == size;
	*foreign = size > 0 && size <= FOREIGN_DIGITS_MAX && digits_from(name, at, "0123456789") == size;
	if (mark == 0 || (!ours && !*foreign))
		return name.size;
	/* A temporary file of a temporary file belongs to the file of the latter. */
	first = parse_temporary((text){name.at, mark}, &ignored);
	return first != mark && !ignored ? first : mark;
}

static entry parse_file(text name)
{
	entry out = {.name = name.at, .kind = NO_KIND};
	int64_t shard = 0, count = 0;
	out.owner_size = parse_data(name, &shard, &count);
	if (out.owner_size != name.size) {
		out.kind = DATA;
		out.count = shard < count && count <= INT32_MAX ? (int32_t)count : 0;
	} else if (ends_with(name, INDEX_END)) {
		out.kind = INDEX;
		out.owner_size = name.size - (sizeof INDEX_END - 1);
	} else if (ends_with(name, INTENT_END)) {
		out.kind = INTENT;
		out.owner_size = name.size - (sizeof INTENT_END - 1);
	}
	if (out.owner_size == 0)
		out.kind = NO_KIND;
	return out;
}

/* What a name is, and of which checkpoint. Names are taken literally; no file is opened. */
static entry parse(const char *name)
{
	text all = {name, strlen(name)};
	bool foreign = false;
	size_t mark = parse_temporary(all, &foreign);
	entry out;
	if (mark != all.size) {
		out = parse_file((text){name, mark});
		if (out.kind == NO_KIND)
			return (entry){.name = name, .owner_size = mark, .kind = foreign ? NO_KIND : OTHER_TEMPORARY};
		out.kind = foreign ? FOREIGN : TEMPORARY;
		out.count = 0;
		return out;
	}
	mark = find_mark(all, DIRECTORY_MARK);
	if (mark != 0 && all.size - mark == sizeof DIRECTORY_MARK - 1 + TEMPORARY_DIGITS &&
		digits_from(all, all.size - TEMPORARY_DIGITS, "0123456789abcdef") == TEMPORARY_DIGITS)
		return (entry){.name = name, .owner_size = mark, .kind = DIRECTORY};
	if (ends_with(all, "_temp") && all.size > 5)
		return (entry){.name = name, .owner_size = all.size - 5, .kind = FOREIGN};
	return parse_file(all);
}

/* The size of "<name>-<n>" at the beginning of `from`, n as managers spell it, if `end` follows; 0 of another name. */
static size_t numbered(text from, const char *name, char end)
{
	size_t at = strlen(name), digits;
	bool negative;
	if (from.size <= at || memcmp(from.at, name, at) != 0 || from.at[at++] != '-')
		return 0;
	negative = at < from.size && from.at[at] == '-';
	at += negative;
	digits = digits_from(from, at, "0123456789");
	if (digits == 0 || (from.at[at] == '0' && (negative || digits > 1)))
		return 0;
	at += digits;
	return (at == from.size ? '\0' : from.at[at]) == end ? at : 0;
}

/* ---- one look at a directory ----------------------------------------------------------------------------- */

typedef struct sweep {
	const cf_directory *directory;
	const char *name;
	int32_t scope;              /* ckptfmt_sweep_scope */
	bool directories, dry_run, sync;
	cf_buffer names;
	cf_buffer entries;             /* entry: the names that belong to the scope */
	cf_buffer gone;             /* bytes of names, */
	cf_buffer ends;             /* uint64_t: and where each name ends in them */
} sweep;

static void free_sweep(sweep *s)
{
	cf_buffer_free(&s->names);
	cf_buffer_free(&s->entries);
	cf_buffer_free(&s->gone);
	cf_buffer_free(&s->ends);
}

static bool is_name(text given, const char *name)
{
	return given.size == strlen(name) && memcmp(given.at, name, given.size) == 0;
}

static bool in_scope(const sweep *s, entry *r)
{
	text all = {r->name, strlen(r->name)}, owner = {r->name, r->owner_size};
	if (s->scope == CKPTFMT_SWEEP_ALL)
		return r->kind != NO_KIND;
	if (s->scope == CKPTFMT_SWEEP_ONE)
		return r->kind != NO_KIND && is_name(owner, s->name);
	if (r->kind == OTHER_TEMPORARY)
		return is_name(owner, "checkpoint") || is_name(owner, "checkpoint.ckptfmt");
	if (r->kind != NO_KIND)
		return numbered(owner, s->name, '\0') != 0;
	r->owner_size = numbered(all, s->name, '-');
	r->kind = CLAIM;
	return r->owner_size != 0 && all.size > r->owner_size + sizeof "-.claim" - 1 && ends_with(all, ".claim");
}

/* Whether killed writers may have left anything of what was listed. */
static bool take_names(sweep *s)
{
	const char *name = (const char *)cf_buffer_items(&s->names);
	size_t size = s->scope == CKPTFMT_SWEEP_ONE ? strlen(s->name) : 0;
	bool found = false;
	cf_buffer_clear(&s->entries);
	for (uint64_t at = 0; at < s->names.size; at += strlen(name + at) + 1) {
		entry r;
		/* Most names in a directory belong to other checkpoints. */
		if (size != 0 && strncmp(name + at, s->name, size) != 0)
			continue;
		r = parse(name + at);
		if (!in_scope(s, &r) || (r.kind == DIRECTORY && !s->directories))
			continue;
		cf_put_bytes(&s->entries, &r, sizeof r);
		found = found || r.kind == TEMPORARY || r.kind == OTHER_TEMPORARY || r.kind == CLAIM ||
			r.kind == DIRECTORY;
	}
	return found;
}

/* ---- files ----------------------------------------------------------------------------------------------- */

static bool is_held(const cf_directory *directory, const char *name)
{
	cf_file file;
	bool taken = cf_os_take(directory, name, &file);
	if (taken)
		cf_local.close_quietly(&file);
	return !taken;
}

/* Removes a file if its exclusive lock can be taken. */
static bool remove_file(const cf_directory *directory, const char *name)
{
	cf_file file;
	bool removed = cf_os_take(directory, name, &file);
	if (removed) {
		removed = cf_local.unlink(directory, name, NULL) == CKPTFMT_OK;
		cf_local.close_quietly(&file);
	}
	return removed;
}

static void note(sweep *s, const char *name)
{
	cf_put_bytes(&s->gone, name, strlen(name));
	cf_put_bytes(&s->ends, &s->gone.size, sizeof s->gone.size);
}

/* Removes the files of one step, the last name first: while the first data file exists, writers see the number as
 * taken. Returns whether all are gone. */
static bool remove_step(sweep *s, const entry *entries, uint64_t count, step which)
{
	bool all = true;
	for (uint64_t i = count; i > 0; i--) {
		if (entries[i - 1].step != which)
			continue;
		if (s->dry_run || remove_file(s->directory, entries[i - 1].name))
			note(s, entries[i - 1].name);
		else
			all = false;
	}
	return all;
}

static bool look_up(const sweep *s, const char *name, cf_file_info *info)
{
	bool exists;
	return cf_local.look_up(s->directory, name, false, info, &exists, NULL) == CKPTFMT_OK && exists;
}

static bool is_after(const cf_file_info *a, const cf_file_info *b)
{
	return a->mtime_seconds != b->mtime_seconds ? a->mtime_seconds > b->mtime_seconds
		: a->mtime_nanoseconds > b->mtime_nanoseconds;
}

/* The latest index under a temporary name with this N that has no other name: one that has may be in force. */
static bool find_proof(const sweep *s, const entry *entries, uint64_t count, int32_t number, cf_file_info *proof)
{
	bool found = false;
	memset(proof, 0, sizeof *proof);
	for (uint64_t i = 0; i < count; i++) {
		cf_file_info info;
		if (entries[i].kind == TEMPORARY && entries[i].count == number && look_up(s, entries[i].name, &info) &&
			info.link_count == 1 && (!found || is_after(&info, proof))) {
			*proof = info;
			found = true;
		}
	}
	return found;
}

/* Decides on the indexes under temporary names with this N, and on the data files with it. `index`: there is an index
 * in force, with N `in_force`; 0: unreadable. */
static void decide(const sweep *s, entry *entries, uint64_t count, int32_t number, bool index, int32_t in_force)
{
	cf_file_info proof, info;
	bool has_data = false;
	for (uint64_t i = 0; i < count; i++)
		has_data = has_data || (entries[i].kind == DATA && entries[i].count == number);
	if (has_data && number != in_force) {
		if (!find_proof(s, entries, count, number, &proof) || (index && in_force == 0))
			return;
		/* A file that was changed since the index was written belongs to another program. */
		for (uint64_t i = 0; i < count; i++) {
			if (entries[i].kind != DATA || entries[i].count != number)
				continue;
			/* The proofs stay for the next sweep. */
			if (!look_up(s, entries[i].name, &info))
				return;
			if (!is_after(&info, &proof))
				entries[i].step = PROVEN;
		}
	}
	for (uint64_t i = 0; i < count; i++)
		if (entries[i].kind == TEMPORARY && entries[i].count == number)
			entries[i].step = LAST;
}

static bool has_step(const entry *entries, uint64_t count, step which)
{
	for (uint64_t i = 0; i < count; i++)
		if (entries[i].step == which)
			return true;
	return false;
}

/* Decides on the files of one checkpoint. */
static ckptfmt_status decide_all(const sweep *s, entry *entries, uint64_t count, ckptfmt_error *err)
{
	char index[CF_NAME_SIZE];
	size_t index_size = entries[0].owner_size + sizeof INDEX_END - 1;
	cf_file_info info;
	int32_t in_force = 0;
	bool exists, others = false;
	if (index_size >= sizeof index)
		return CKPTFMT_OK;
	memcpy(index, entries[0].name, entries[0].owner_size);
	memcpy(index + entries[0].owner_size, INDEX_END, sizeof INDEX_END);
	if (cf_local.look_up(s->directory, index, false, &info, &exists, NULL) != CKPTFMT_OK)
		exists = true;
	if (exists)
		CF_TRY(cf_commit_count(s->directory, index, &in_force, NULL, err));
	for (uint64_t i = 0; i < count; i++) {
		entry *r = &entries[i];
		if (r->kind == TEMPORARY && strncmp(r->name, index, index_size) == 0)
			CF_TRY(cf_commit_count(s->directory, r->name, &r->count, NULL, err));
		if ((r->kind == TEMPORARY && r->count == 0) ||
			(r->kind == CLAIM && look_up(s, r->name, &info) && info.size == 0))
			r->step = AT_ONCE;
	}
	for (uint64_t i = 0; i < count; i++)
		if (entries[i].kind == TEMPORARY && entries[i].count != 0 && entries[i].step == KEPT)
			decide(s, entries, count, entries[i].count, exists, in_force);
	for (uint64_t i = 0; i < count; i++)
		others = others || (entries[i].kind == DATA && entries[i].count != 0 && entries[i].step == KEPT);
	for (uint64_t i = 0; i < count; i++)
		if (entries[i].kind == INTENT && !exists && !others && has_step(entries, count, LAST))
			entries[i].step = PROVEN;
	return CKPTFMT_OK;
}

/* A live writer releases a lock only with its file or after its commit, which needs the directory's lock: checking one
 * after the other is enough. */
static bool is_alive(const sweep *s, const entry *entries, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		if ((entries[i].kind == TEMPORARY || entries[i].step != KEPT) && is_held(s->directory, entries[i].name))
			return true;
	return false;
}

static ckptfmt_status sweep_checkpoint(sweep *s, entry *entries, uint64_t count, ckptfmt_error *err)
{
	for (uint64_t i = 0; i < count; i++)
		if (entries[i].kind == FOREIGN)
			return CKPTFMT_OK;
	CF_TRY(decide_all(s, entries, count, err));
	if (is_alive(s, entries, count))
		return CKPTFMT_OK;
	/* A power cut must not bring back an index whose data files are gone. */
	if (s->sync && !s->dry_run && has_step(entries, count, PROVEN))
		CF_TRY(cf_os_directory_sync(s->directory, err));
	(void)remove_step(s, entries, count, AT_ONCE);
	/* While the proofs exist, another remover can continue. */
	if (remove_step(s, entries, count, PROVEN))
		(void)remove_step(s, entries, count, LAST);
	return CKPTFMT_OK;
}

/* ---- temporary directories ------------------------------------------------------------------------------- */

/* A file that a save writes to its temporary directory: of a bundle "part-SSSSS-of-NNNNN". */
static bool is_part(const char *name)
{
	entry r = parse(name);
	text owner = {name, r.owner_size};
	size_t at = 5, shard, count;
	if ((r.kind != INDEX && r.kind != DATA && r.kind != INTENT && r.kind != TEMPORARY) || owner.size < at ||
		memcmp(name, "part-", at) != 0)
		return false;
	shard = digits_from(owner, at, "0123456789");
	at += shard;
	if (owner.size - at < 4 || memcmp(name + at, "-of-", 4) != 0)
		return false;
	count = digits_from(owner, at + 4, "0123456789");
	return at + 4 + count == owner.size && shard >= NUMBER_DIGITS && shard <= NUMBER_DIGITS_MAX &&
		count >= NUMBER_DIGITS && count <= NUMBER_DIGITS_MAX;
}

/* Removes the files in a temporary directory, except its lock; whether all are gone. */
static bool empty_directory(const cf_directory *place, const cf_buffer *names, bool dry_run)
{
	const char *name = (const char *)cf_buffer_items(names);
	for (int pass = 0; pass < (dry_run ? 1 : 2); pass++)
		for (uint64_t at = 0; at < names->size; at += strlen(name + at) + 1)
			if (strcmp(name + at, LOCK_NAME) != 0 && (pass == 0 ? !is_part(name + at) || is_held(place, name + at)
				: !remove_file(place, name + at)))
				return false;
	return true;
}

static void sweep_directory(sweep *s, const char *name)
{
	cf_directory place;
	cf_file lock;
	cf_buffer inside = CF_BUFFER_EMPTY;
	bool locked, empty, removed;
	if (!cf_os_directory_open_in(s->directory, name, &place))
		return;
	locked = cf_os_take(&place, LOCK_NAME, &lock);
	/* Listed under the lock: no process creates a file there any more. */
	removed = cf_local.directory_list(&place, &inside, NULL) == CKPTFMT_OK;
	empty = inside.size == 0;
	removed = removed && (empty || (locked && empty_directory(&place, &inside, s->dry_run)));
	if (removed && !s->dry_run)
		removed = (empty || cf_local.unlink(&place, LOCK_NAME, NULL) == CKPTFMT_OK) &&
			cf_os_directory_remove_in(s->directory, name);
	if (removed)
		note(s, name);
	if (locked)
		cf_local.close_quietly(&lock);
	cf_local.directory_close(&place);
	cf_buffer_free(&inside);
}

/* ---- all ------------------------------------------------------------------------------------------------- */

static int compare_owners(const entry *a, const entry *b)
{
	size_t size = a->owner_size < b->owner_size ? a->owner_size : b->owner_size;
	int order = memcmp(a->name, b->name, size);
	return order != 0 ? order : (a->owner_size > b->owner_size) - (a->owner_size < b->owner_size);
}

static int compare_entries(const void *a, const void *b)
{
	int order = compare_owners(a, b);
	return order != 0 ? order : strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

/* Removes what the entries allow. REQUIRES: the directory's lock, taken before it was listed. */
static ckptfmt_status sweep_entries(sweep *s, ckptfmt_error *err)
{
	entry *entries = (entry *)cf_buffer_items(&s->entries);
	uint64_t total = s->entries.size / sizeof *entries, count = 0, end;
	CF_TRY(cf_buffer_status(&s->entries, err));
	for (uint64_t i = 0; i < total; i++) {
		entry r = entries[i];
		if (r.kind == DIRECTORY)
			sweep_directory(s, r.name);
		else if (r.kind == OTHER_TEMPORARY && (s->dry_run ? !is_held(s->directory, r.name)
			: remove_file(s->directory, r.name)))
			note(s, r.name);
		else if (r.kind != OTHER_TEMPORARY)
			entries[count++] = r;
	}
	qsort(entries, (size_t)count, sizeof *entries, compare_entries);
	for (uint64_t first = 0; first < count; first = end) {
		for (end = first + 1; end < count && compare_owners(&entries[first], &entries[end]) == 0; end++)
			continue;
		CF_TRY(sweep_checkpoint(s, entries + first, end - first, err));
	}
	return CKPTFMT_OK;
}

/* Lists the directory and removes. REQUIRES: the directory's lock, and a file system that is local. */
static ckptfmt_status run(sweep *s, ckptfmt_error *err)
{
	CF_TRY(cf_local.directory_list(s->directory, &s->names, err));
	return take_names(s) ? sweep_entries(s, err) : CKPTFMT_OK;
}

static void before_save(sweep *s, uint64_t names_max)
{
	if (ckptfmt_file_system_is_local(s->directory->fd) &&
		cf_os_directory_list_first(s->directory, names_max, &s->names, NULL) == CKPTFMT_OK && take_names(s) &&
		cf_local.directory_lock(s->directory, 0, NULL) == CKPTFMT_OK) {
		ckptfmt_status ignored = run(s, NULL);
		(void)ignored;
		cf_local.directory_unlock(s->directory);
	}
	free_sweep(s);
}

void cf_sweep_before_save(const cf_commit *commit, bool directories)
{
	sweep s = {.directory = commit->directory, .name = commit->prefix->base, .scope = CKPTFMT_SWEEP_ONE,
		.directories = directories, .sync = commit->durability == CKPTFMT_DURABILITY_FULL};
	/* A prefix that is overwritten is listed in any case, to choose the number of data files. */
	if (cf_os_is_local(commit->directory->storage))
		before_save(&s, commit->directory->permissions == 0 ? CF_SWEEP_NAMES_MAX : UINT64_MAX);
}

void ckptfmt_sweep_before_save(const char *prefix, int32_t scope)
{
	cf_prefix parts;
	cf_directory directory = {.fd = -1};
	cf_commit commit = {&parts, &directory, CKPTFMT_DURABILITY_FULL, 0};
	sweep s = {.directory = &directory, .scope = scope, .directories = true, .sync = true};
	cf_file_info info;
	bool exists;
	if (cf_prefix_split(prefix, &parts, NULL) != CKPTFMT_OK)
		return;
	s.name = parts.base;
	if (parts.base[0] != '\0' &&
		cf_local.directory_open(NULL, parts.directory, false, false, &directory, NULL) == CKPTFMT_OK &&
		cf_commit_observe(&commit, NULL) == CKPTFMT_OK &&
		cf_local.look_up(&directory, parts.base, false, &info, &exists, NULL) == CKPTFMT_OK)
		before_save(&s, directory.permissions == 0 && !exists && scope == CKPTFMT_SWEEP_ONE ?
			(uint64_t)CF_SWEEP_NAMES_MAX : UINT64_MAX);
	cf_local.directory_close(&directory);
	cf_prefix_free(&parts);
}

static ckptfmt_status take_gone(sweep *s, ckptfmt_strings **out, ckptfmt_error *err)
{
	static const uint64_t zero;
	ckptfmt_strings *strings = cf_allocate_zero(1, sizeof *strings);
	cf_buffer offsets = CF_BUFFER_EMPTY;
	cf_put_bytes(&offsets, &zero, sizeof zero);
	cf_put_bytes(&offsets, cf_buffer_items(&s->ends), s->ends.size);
	if (strings == NULL || offsets.failed || s->gone.failed || s->ends.failed) {
		cf_release(strings);
		cf_buffer_free(&offsets);
		return cf_fail_memory(err);
	}
	*strings = (ckptfmt_strings){s->gone.data, (uint64_t *)(void *)offsets.data, s->ends.size / sizeof zero};
	s->gone = CF_BUFFER_EMPTY;
	*out = strings;
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_sweep(int32_t fd, const char *path, const char *name, int32_t scope, int32_t dry_run,
	int32_t sync, ckptfmt_strings **out, ckptfmt_error *err)
{
	cf_directory directory = {.fd = fd, .path = path};
	sweep s = {.directory = &directory, .name = name, .scope = scope, .directories = true, .dry_run = dry_run != 0,
		.sync = sync != 0};
	ckptfmt_status status = ckptfmt_file_system_is_local(fd) ? run(&s, err) : CKPTFMT_OK;
	*out = NULL;
	if (status == CKPTFMT_OK)
		status = take_gone(&s, out, err);
	free_sweep(&s);
	return status;
}
