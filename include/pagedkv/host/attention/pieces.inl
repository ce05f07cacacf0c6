// The pieces of a plan, for one instruction set; see vectors.inl.
#if defined(PAGEDKV_ISA)

namespace pagedkv::host::attention::PAGEDKV_ISA {

template <class Element>
PAGEDKV_NOINLINE void run_piece(const attention_call& call, const attention_plan& plan, const piece& p, float* scratch,
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
