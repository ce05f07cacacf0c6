#include <pagedkv/core/error.hpp>

#include <iostream>

int main() { std::cout << pagedkv::error{pagedkv::error_code::in_use, "blocks", 2}.message() << '\n'; }
