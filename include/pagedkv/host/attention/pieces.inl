// The pieces of a plan, and all that they need, for one instruction set; see vectors.inl.
#if defined(PAGEDKV_ISA)

#include <pagedkv/host/attention/vectors.inl>
#include <pagedkv/host/attention/fetches.inl>
#include <pagedkv/host/attention/rows.inl>
#include <pagedkv/host/attention/results.inl>
#include <pagedkv/host/attention/matrix.inl>
#include <pagedkv/host/attention/pairs.inl>
#include <pagedkv/host/attention/panels.inl>
#include <pagedkv/host/attention/tiles.inl>
#include <pagedkv/host/attention/worker.inl>
#include <pagedkv/host/attention/row_pieces.inl>
#include <pagedkv/host/attention/panel_pieces.inl>

namespace pagedkv::host::attention::PAGEDKV_ISA {

template <class Element>
PAGEDKV_NOINLINE void run_piece(const attention_call& call, const work_plan& plan, const piece& p, float* scratch,
                                float* partials) {
#if PAGEDKV_LANES == 16
  if constexpr (fits_panels<Element>) {
    if (is_in_panels(call, plan.units[p.unit])) {
      panel_worker<Element>(call, plan, p, scratch).run(partials);
      return;
    }
  }
#endif
  row_worker<Element>(call, plan, p, scratch).run(partials);
}

}  // namespace pagedkv::host::attention::PAGEDKV_ISA

#endif
