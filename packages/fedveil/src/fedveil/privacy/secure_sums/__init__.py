"""The parameters of a secure sum, and who may drop out of one."""
