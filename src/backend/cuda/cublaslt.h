#pragma once

#include <cublasLt.h>

#include <memory>

namespace octet {

// The functions of cuBLASLt that octet uses. The library is opened at run time, because it is large and absent on
// machines without a GPU.
struct CublasLt {
#define OCTET_CUBLASLT_FUNCTIONS(X)                                                                    \
  X(Create)                                                                                            \
  X(Destroy) X(GetVersion) X(GetStatusString) X(Matmul) X(MatmulDescCreate) X(MatmulDescDestroy)       \
      X(MatmulDescSetAttribute) X(MatrixLayoutCreate) X(MatrixLayoutDestroy) X(MatmulPreferenceCreate) \
          X(MatmulPreferenceDestroy) X(MatmulPreferenceSetAttribute) X(MatmulAlgoGetHeuristic)         \
              X(MatmulAlgoCheck) X(MatmulAlgoConfigGetAttribute)
#define OCTET_DECLARE(name) decltype(&cublasLt##name) name = nullptr;
  OCTET_CUBLASLT_FUNCTIONS(OCTET_DECLARE)
#undef OCTET_DECLARE

  // Throws Error naming the library when it cannot be opened. Opened once for the whole program.
  static const CublasLt& get();
  void check(cublasStatus_t status, const char* what) const;
};

template <auto destroy>
struct CublasLtDelete {
  template <class T>
  void operator()(T* handle) const {
    (CublasLt::get().*destroy)(handle);
  }
};
using LtHandle = std::unique_ptr<std::remove_pointer_t<cublasLtHandle_t>, CublasLtDelete<&CublasLt::Destroy>>;
using LtMatmulDesc = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>,
                                     CublasLtDelete<&CublasLt::MatmulDescDestroy>>;
using LtLayout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>,
                                 CublasLtDelete<&CublasLt::MatrixLayoutDestroy>>;
using LtPreference = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                                     CublasLtDelete<&CublasLt::MatmulPreferenceDestroy>>;

}  // namespace octet
