"""Programs as machine code of this machine, in memory: no compiler needs to be installed."""

import llvmlite
from llvmlite import binding


def compile_program(program: str) -> bytes:
    """A program in LLVM's language, compiled."""
    module, machine = binding.parse_assembly(program), _machine()
    module.verify()
    # The vectors are explicit already: a level of optimisation takes longer and finds no more.
    passes = binding.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    options = binding.create_pipeline_tuning_options()
    passes.run(module, binding.create_pass_builder(machine, options))
    return machine.emit_object(module)


# Code lives as long as the engine that holds it.
_engines: list[binding.ExecutionEngine] = []


def load_function(code: bytes, name: str) -> int:
    """The address of a function in object code."""
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    return engine.get_function_address(name)


def this_machine() -> str:
    """All that code compiled here depends on, beside the program."""
    features = binding.get_host_cpu_features().flatten()
    triple, cpu = binding.get_process_triple(), binding.get_host_cpu_name()
    return f"{llvmlite.__version__} {binding.llvm_version_info} {triple} {cpu} {features}"


def _machine() -> binding.TargetMachine:
    """What this processor can do. An engine owns the one that it is given: none is shared."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=3,
        jit=True,
    )
