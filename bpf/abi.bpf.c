// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The contract between programs, native code and Python, as BTF: every struct and enum of shared/.
 * Read by testbed/kernel/abi.py, and never loaded.
 *
 * clang emits BTF for the types of global variables and for the types that these contain, but not
 * for types that are only declared. So each type that no other type contains is named here once.
 */
#include "shared/additions_abi.h"
#include "shared/rows_native_abi.h"
#include "shared/capture_abi.h"
#include "shared/delay_abi.h"
#include "shared/fault_abi.h"
#include "shared/mesh_native_abi.h"
#include "shared/parts_native_abi.h"
#include "shared/partition_native_abi.h"
#include "shared/pinch_native_abi.h"
#include "shared/ring_native_abi.h"
#include "shared/sage_native_abi.h"
#include "shared/tap_abi.h"
#include "shared/tcp_ring_native_abi.h"
#include "shared/telemetry_abi.h"
#include "shared/token_native_abi.h"
#include "shared/wire_abi.h"

#define KEEP(type) KEEP_AS(type, __COUNTER__)
#define KEEP_AS(type, number) KEEP_IN(type, number)
#define KEEP_IN(type, number) type keep_##number

KEEP(enum additions_size);

KEEP(enum net_value);
KEEP(enum ring_value);
KEEP(enum ring_kind);
KEEP(enum pinch_kind);
KEEP(enum ring_flag);
KEEP(enum ring_reason);
KEEP(enum ring_item);
KEEP(enum ring_prev);
KEEP(enum ring_stage);
KEEP(struct ring_frame);

KEEP(enum drop_reason);

KEEP(enum ring_size);
KEEP(enum ring_result_state);
KEEP(enum ring_wr_kind);
KEEP(enum ring_wr_extra);
KEEP(enum ring_wr_attempt);
KEEP(enum ring_early_state);
KEEP(enum ring_counter);
KEEP(struct ring_config);
KEEP(struct ring_control);
KEEP(struct ring_chunk);
KEEP(struct ring_retransmit);
KEEP(struct ring_stream);
KEEP(struct ring_rank);
KEEP(struct ring_wr);
KEEP(struct ring_nacks);
KEEP(struct ring_early);

KEEP(enum ring_native_size);
KEEP(enum ring_outcome);
KEEP(struct lanes);
KEEP(struct ring_layout);
KEEP(struct ring_segment);
KEEP(struct ring_plan);
KEEP(struct ring_status_record);
KEEP(struct ring_quiet);
KEEP(struct ring);

KEEP(enum fate_size);
KEEP(enum fault_draw);
KEEP(enum fault_action);
KEEP(struct fault_rules);
KEEP(struct fault_quantiles);
KEEP(struct fault_verdict);
KEEP(struct fault_link);
KEEP(struct fault_limit);
KEEP(struct fault_record);

KEEP(enum delay_header_value);
KEEP(struct delay_header);
KEEP(enum delay_value);
KEEP(struct delay_line);

KEEP(enum switch_value);
KEEP(struct switch_destination);
KEEP(struct switch_counters);

KEEP(enum pinch_size);
KEEP(enum pinch_mark);
KEEP(enum pinch_word);
KEEP(enum pinch_seq);
KEEP(enum pinch_flag);
KEEP(enum pinch_aggregation);
KEEP(enum pinch_counter);
KEEP(struct pinch_config);
KEEP(struct pinch_control);
KEEP(struct pinch_flow);
KEEP(struct pinch_frame);
KEEP(struct pinch_sent);
KEEP(struct pinch_vertex);
KEEP(struct pinch_edge);
KEEP(struct pinch_hub);
KEEP(struct pinch_landed);
KEEP(struct pinch_peer);
KEEP(struct pinch_handshake);
KEEP(struct pinch_ack);

KEEP(enum pinch_waited);
KEEP(enum pinch_filling);
KEEP(struct pinch_format);
KEEP(struct pinch_landings);
KEEP(struct pinch);

KEEP(enum token_size);
KEEP(enum token_claim);
KEEP(enum token_counter);
KEEP(struct token_frame);
KEEP(struct token_config);
KEEP(struct token_control);
KEEP(struct token_out);
KEEP(struct token_slot);
KEEP(struct token_peer);
KEEP(struct token_part);
KEEP(struct token_edge);
KEEP(enum tokens_waited);
KEEP(struct token_partner);
KEEP(struct tokens);

KEEP(enum ring_reduced);
KEEP(enum tcp_ring_op);
KEEP(enum tcp_ring_operation);
KEEP(enum tcp_ring_outcome);
KEEP(enum tcp_ring_type);
KEEP(struct tcp_ring);
KEEP(enum mesh_kind);
KEEP(enum mesh_step);
KEEP(enum mesh_outcome);
KEEP(struct mesh_peer);
KEEP(struct mesh);
KEEP(enum row_lanes);
KEEP(enum adjacency_sum);
KEEP(struct adjacency);
KEEP(struct row_source);
KEEP(struct lane_sums);

KEEP(enum partition_size);
KEEP(enum partition_owner);
KEEP(struct partition);
KEEP(struct fennel);
KEEP(struct hdrf);
KEEP(struct rmat);

KEEP(enum parts_size);
KEEP(enum parts_kind);
KEEP(enum parts_outcome);
KEEP(struct parts_request);
KEEP(struct parts_reply);
KEEP(struct part);
KEEP(struct parts_server);
KEEP(struct parts_peer);
KEEP(struct parts);

KEEP(struct sage_rows);
KEEP(struct sage_sums);

KEEP(enum capture_size);
KEEP(struct capture_config);
KEEP(struct captured);

KEEP(enum tap_size);
KEEP(struct tapped);

KEEP(enum telemetry_size);
KEEP(enum telemetry_wait);
KEEP(enum telemetry_kind);
KEEP(struct telemetry_sample);
KEEP(struct telemetry_poll);
KEEP(struct telemetry_key);
KEEP(struct telemetry_count);
