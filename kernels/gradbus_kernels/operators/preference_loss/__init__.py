"""The losses of preference learning on pairs of a chosen and a rejected response: DPO, IPO, SimPO and ORPO."""
