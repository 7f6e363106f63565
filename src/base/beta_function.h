#pragma once

namespace octet {

// The regularised incomplete beta function: the share of a beta distribution with a and b that is below x.
double incomplete_beta(double a, double b, double x);

}  // namespace octet
