#pragma once

// Every model of `free_list`, so that `free_list_for` is defined for every locking policy.
#include <pagedkv/pool/lock_free_free_list.hpp>
#include <pagedkv/pool/sharded_free_list.hpp>
#include <pagedkv/pool/stack_free_list.hpp>
