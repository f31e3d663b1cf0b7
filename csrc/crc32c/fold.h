/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Carry-less folding for one vector width; tools/gen_crc32c_tables.py explains the mathematics.
 *
 *   fold   Four independent vectors each take FOLD_SIZE bytes a round. At the end they are folded into one vector,
 *          which takes the remaining vectors; its 16-byte lanes are folded into one lane, and the CRC instruction
 *          reduces that to a state.
 *   fuse   The CRC instruction and the multiplier are different execution units, so a block is divided into one stream
 *          of four vectors and three streams of the instruction. One loop runs all four; their states are joined at
 *          its end. The vectors come first, so that they are aligned when the block is.
 *
 *          | vectors: rounds * 4 * FOLD_SIZE | first: rounds * FOLD_WORDS * 8 | second, as long | third, as long |
 *
 * Not a standalone header: x86.c includes it once for each width, after defining
 *   FOLD_NAME(name)            the name with a suffix for the width
 *   FOLD_TARGET                the function attribute that allows the instructions
 *   FOLD_VECTOR, FOLD_SIZE     the vector type and its bytes
 *   FOLD_LOAD(from), FOLD_STORE(to, v), FOLD_STREAM(to, v)     unaligned, unaligned, aligned and past the caches
 *   FOLD_PIN(v)                as CF_CRC32C_PIN
 *   FOLD_ZERO                  a vector of zeros
 *   FOLD_KEY(row)              a row of cf_crc32c_fold in every lane
 *   FOLD_STEP(v, key, next)    v folded onto next
 *   FOLD_BEGIN(v, state)       v with the state added to its first bytes
 *   FOLD_LANES(v)              v folded into its last lane
 *   FOLD_ROW_1, FOLD_ROW_2, FOLD_ROW_4     rows of cf_crc32c_fold for one, two and four vectors
 *   FOLD_WORDS, FOLD_JOINS     words of a scalar stream and round, and the table of the joins
 *   FOLD_LEAST, FUSE_LEAST     sizes from which each is faster; FOLD_LEAST >= 4 * FOLD_SIZE
 *   FOLD_SMALL(...), FOLD_COPY(...)        the functions for smaller sizes and for copies that fit the caches
 */

CF_CRC32C_INLINE FOLD_TARGET FOLD_VECTOR FOLD_NAME(take)(uint8_t *to, const uint8_t *from, size_t at, enum store store)
{
	FOLD_VECTOR vector = FOLD_LOAD(from + at);
	if (store != STORE_NONE)
		FOLD_PIN(vector);
	if (store == STORE_PLAIN)
		FOLD_STORE(to + at, vector);
	if (store == STORE_STREAM)
		FOLD_STREAM(to + at, vector);
	return vector;
}

/* Folds four consecutive vectors into the last. */
CF_CRC32C_INLINE FOLD_TARGET FOLD_VECTOR FOLD_NAME(gather)(FOLD_VECTOR a, FOLD_VECTOR b, FOLD_VECTOR c, FOLD_VECTOR d)
{
	FOLD_VECTOR one = FOLD_KEY(FOLD_ROW_1);
	b = FOLD_STEP(a, one, b);
	d = FOLD_STEP(c, one, d);
	return FOLD_STEP(b, FOLD_KEY(FOLD_ROW_2), d);
}

/* REQUIRES: size >= 4 * FOLD_SIZE; for STORE_STREAM `to` is a multiple of FOLD_SIZE. */
CF_CRC32C_INLINE FOLD_TARGET uint32_t FOLD_NAME(fold)(uint32_t state, uint8_t *to, const uint8_t *from, size_t size,
	enum store store)
{
	FOLD_VECTOR a = FOLD_BEGIN(FOLD_NAME(take)(to, from, 0, store), state);
	FOLD_VECTOR b = FOLD_NAME(take)(to, from, FOLD_SIZE, store);
	FOLD_VECTOR c = FOLD_NAME(take)(to, from, 2 * FOLD_SIZE, store);
	FOLD_VECTOR d = FOLD_NAME(take)(to, from, 3 * FOLD_SIZE, store);
	FOLD_VECTOR key = FOLD_KEY(FOLD_ROW_4);
	size_t at = 4 * FOLD_SIZE;
	for (; size - at >= 4 * FOLD_SIZE; at += 4 * FOLD_SIZE) {
		a = FOLD_STEP(a, key, FOLD_NAME(take)(to, from, at, store));
		b = FOLD_STEP(b, key, FOLD_NAME(take)(to, from, at + FOLD_SIZE, store));
		c = FOLD_STEP(c, key, FOLD_NAME(take)(to, from, at + 2 * FOLD_SIZE, store));
		d = FOLD_STEP(d, key, FOLD_NAME(take)(to, from, at + 3 * FOLD_SIZE, store));
	}
	a = FOLD_NAME(gather)(a, b, c, d);
	key = FOLD_KEY(FOLD_ROW_1);
	for (; size - at >= FOLD_SIZE; at += FOLD_SIZE)
		a = FOLD_STEP(a, key, FOLD_NAME(take)(to, from, at, store));
	__m128i lane = FOLD_LANES(a);
	for (; size - at >= LANE_SIZE; at += LANE_SIZE)
		lane = fold_step(lane, lane_key(CF_CRC32C_FOLD_16), take_lane(to, from, at, store != STORE_NONE));
	if (store == STORE_STREAM)
		_mm_sfence();
	return one_stream(reduce_lane(lane), to, from, at, size, store != STORE_NONE);
}

/* One block. REQUIRES: 1 <= rounds <= CF_CRC32C_FUSE_ROUNDS. */
CF_CRC32C_INLINE FOLD_TARGET uint32_t FOLD_NAME(fuse_block)(uint32_t state, const uint8_t *vectors, size_t rounds)
{
	const size_t part = rounds * FOLD_WORDS * 8;
	const uint8_t *words = vectors + rounds * 4 * FOLD_SIZE;
	const uint8_t *end = words + part;
	uint32_t first = 0, second = 0, third = 0;
	FOLD_VECTOR a = FOLD_ZERO, b = FOLD_ZERO, c = FOLD_ZERO, d = FOLD_ZERO;
	FOLD_VECTOR key = FOLD_KEY(FOLD_ROW_4);
	while (words < end) {
		a = FOLD_STEP(a, key, FOLD_LOAD(vectors));
		b = FOLD_STEP(b, key, FOLD_LOAD(vectors + FOLD_SIZE));
		c = FOLD_STEP(c, key, FOLD_LOAD(vectors + 2 * FOLD_SIZE));
		d = FOLD_STEP(d, key, FOLD_LOAD(vectors + 3 * FOLD_SIZE));
		vectors += 4 * FOLD_SIZE;
		CF_CRC32C_UNROLL
		for (unsigned i = 0; i < FOLD_WORDS; i++, words += 8) {
			first = STREAMS_U64(first, cf_load_u64(words));
			second = STREAMS_U64(second, cf_load_u64(words + part));
			third = STREAMS_U64(third, cf_load_u64(words + 2 * part));
		}
	}
	/* The state is joined like the streams instead of starting the vectors, so that no block waits for the previous
	 * one. */
	const uint32_t *joins = FOLD_JOINS[rounds - 1];
	uint32_t vector = reduce_lane(FOLD_LANES(FOLD_NAME(gather)(a, b, c, d)));
	uint64_t joined = multiply_registers(state, joins[0]) ^ multiply_registers(vector, joins[1]) ^
		multiply_registers(first, joins[2]) ^ multiply_registers(second, joins[3]);
	return STREAMS_U64(0, joined) ^ third;
}

/* Processes blocks while that is faster than folding alone. Advances *from and *size. */
CF_CRC32C_INLINE FOLD_TARGET uint32_t FOLD_NAME(fuse)(uint32_t state, const uint8_t **from, size_t *size)
{
	const size_t round = 4 * FOLD_SIZE + 3 * 8 * FOLD_WORDS;
	while (*size >= FUSE_LEAST) {
		size_t rounds = (size_t)cf_min_u64(*size / round, CF_CRC32C_FUSE_ROUNDS);
		state = FOLD_NAME(fuse_block)(state, *from, rounds);
		*from += rounds * round;
		*size -= rounds * round;
	}
	return state;
}

static FOLD_TARGET uint32_t FOLD_NAME(update)(uint32_t state, uint8_t *to, const uint8_t *from, size_t size)
{
	if (size < FOLD_LEAST)
		return FOLD_SMALL(state, to, from, size);
	/* From this size on aligned vectors are worth the separate head. */
	size_t head = 0;
	if (size >= ALIGN_LEAST)
		head = -(uintptr_t)(to == NULL ? from : to) % LINE_SIZE;
	if (head != 0) {
		state = small_update(state, to, from, head);
		from += head;
		size -= head;
	}
	if (to == NULL) {
		state = FOLD_NAME(fuse)(state, &from, &size);
		return size < FOLD_LEAST ? FOLD_SMALL(state, NULL, from, size) :
			FOLD_NAME(fold)(state, NULL, from, size, STORE_NONE);
	}
	to += head;
	if (size < STREAM_LEAST)
		return FOLD_COPY(state, to, from, size);
	return FOLD_NAME(fold)(state, to, from, size, STORE_STREAM);
}

#undef FOLD_NAME
#undef FOLD_TARGET
#undef FOLD_VECTOR
#undef FOLD_SIZE
#undef FOLD_LOAD
#undef FOLD_STORE
#undef FOLD_STREAM
#undef FOLD_PIN
#undef FOLD_ZERO
#undef FOLD_KEY
#undef FOLD_STEP
#undef FOLD_BEGIN
#undef FOLD_LANES
#undef FOLD_ROW_1
#undef FOLD_ROW_2
#undef FOLD_ROW_4
#undef FOLD_WORDS
#undef FOLD_JOINS
#undef FOLD_LEAST
#undef FUSE_LEAST
#undef FOLD_SMALL
#undef FOLD_COPY
