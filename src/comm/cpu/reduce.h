#pragma once
// The two kinds of Comm of the cpu engine, and the sum that both use: in the order of ranks, so that every rank, every
// run and either kind gets the same bits.
#include <vector>

#include "comm/comm.h"

namespace octet::BACKEND {

std::unique_ptr<Comm> make_shared_memory_comm(Host&);  // reads the others' tensors where they are
std::unique_ptr<Comm> make_message_comm(Host&);        // sends bytes

// What host.exchange() moves.
std::vector<Host::Part> parts_of(Tensor, const std::vector<Piece>&);

// out[i] = parts[0][i] op parts[1][i] op ...; out may be one of the parts. bf16 is summed in fp32 and rounded once.
void reduce_in_order(Tensor out, const std::vector<Tensor>& parts, Reduce op);

}  // namespace octet::BACKEND
