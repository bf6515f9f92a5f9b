//! The shape that most node classes share: a small struct that holds the studio.

/// Declares a node class: its name, its category, its declaration from an empty schema, and what it does.
macro_rules! class {
    (
        $(#[$about:meta])*
        $name:ident in $category:literal;
        |$schema:ident| $declaration:expr;
        |$studio:ident, $call:ident| $run:expr
    ) => {
        crate::studio::class! {
            $(#[$about])*
            $name in $category;
            |_listed, $schema| $declaration;
            |$studio, $call| $run
        }
    };
    // As above, for a declaration that lists what the studio has.
    (
        $(#[$about:meta])*
        $name:ident in $category:literal;
        |$listed:ident, $schema:ident| $declaration:expr;
        |$studio:ident, $call:ident| $run:expr
    ) => {
        $(#[$about])*
        #[allow(non_camel_case_types, reason = "stored workflows know the class by this name")]
        struct $name(std::sync::Arc<crate::Studio>);

        impl graph::NodeClass for $name {
            fn schema(&self) -> graph::Schema {
                let $listed = &self.0;
                let $schema = graph::Schema::new(stringify!($name), $category);
                $declaration
            }

            fn run(&self, $call: &graph::Call) -> Result<graph::Outcome, graph::Failure> {
                #[allow(unused_variables, reason = "many classes need nothing of it")]
                let $studio = &self.0;
                $run
            }
        }
    };
}

pub(crate) use class;
