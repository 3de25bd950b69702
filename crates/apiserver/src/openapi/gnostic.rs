//! The OpenAPI v2 document in the protobuf form that kubectl asks for.

use prost::Message;
use serde_json::{Map, Value};

use super::proto::{
    AdditionalKind, AdditionalProperties, Any, BodyParameter, Document, Info, ItemsItem, NamedAny,
    NamedPathItem, NamedResponseValue, NamedSchema, NamedSchemas, NonBodyKind, NonBodyParameter,
    Operation, Parameter, ParameterKind, ParametersItem, PathItem, PathParameter, Paths,
    QueryParameter, Response, ResponseValue, Responses, Schema, SchemaItem, TypeItem,
};

/// Encodes an OpenAPI v2 document as we write it.
pub(super) fn encode(document: &Value) -> Vec<u8> {
    self::document(document).encode_to_vec()
}

fn document(value: &Value) -> Document {
    let info = &value["info"];
    Document {
        swagger: text(value, "swagger"),
        info: Some(Info {
            title: text(info, "title"),
            version: text(info, "version"),
        }),
        paths: Some(Paths {
            path: fields(&value["paths"])
                .map(|(name, item)| NamedPathItem {
                    name: name.clone(),
                    value: Some(path_item(item)),
                })
                .collect(),
        }),
        definitions: Some(named_schemas(&value["definitions"])),
    }
}

fn path_item(value: &Value) -> PathItem {
    let operation = |method: &str| value.get(method).map(operation);
    PathItem {
        get: operation("get"),
        put: operation("put"),
        post: operation("post"),
        delete: operation("delete"),
        patch: operation("patch"),
        parameters: list(value, "parameters").iter().map(parameter).collect(),
    }
}

fn operation(value: &Value) -> Operation {
    Operation {
        tags: texts(value, "tags"),
        description: text(value, "description"),
        operation_id: text(value, "operationId"),
        produces: texts(value, "produces"),
        consumes: texts(value, "consumes"),
        parameters: list(value, "parameters").iter().map(parameter).collect(),
        responses: Some(Responses {
            response_code: fields(&value["responses"])
                .map(|(code, response)| NamedResponseValue {
                    name: code.clone(),
                    value: Some(ResponseValue {
                        response: Some(Response {
                            description: text(response, "description"),
                            schema: response.get("schema").map(|answer| SchemaItem {
                                schema: Some(schema(answer)),
                            }),
                        }),
                    }),
                })
                .collect(),
        }),
        schemes: texts(value, "schemes"),
        vendor_extension: extensions(value),
    }
}

fn parameter(value: &Value) -> ParametersItem {
    let place = text(value, "in");
    let required = flag(value, "required");
    let (name, description) = (text(value, "name"), text(value, "description"));
    let type_name = text(value, "type");
    let unique_items = flag(value, "uniqueItems");
    let kind = match place.as_str() {
        "body" => ParameterKind::Body(Box::new(BodyParameter {
            name,
            r#in: place,
            required,
            schema: value.get("schema").map(schema),
        })),
        "path" => non_body(NonBodyKind::Path(PathParameter {
            required,
            r#in: place,
            description,
            name,
            type_name,
            unique_items,
        })),
        _ => non_body(NonBodyKind::Query(QueryParameter {
            r#in: place,
            description,
            name,
            type_name,
            unique_items,
        })),
    };
    ParametersItem {
        parameter: Some(Parameter { kind: Some(kind) }),
    }
}

fn non_body(kind: NonBodyKind) -> ParameterKind {
    ParameterKind::NonBody(NonBodyParameter { kind: Some(kind) })
}

fn schema(value: &Value) -> Schema {
    Schema {
        reference: text(value, "$ref"),
        format: text(value, "format"),
        title: text(value, "title"),
        description: text(value, "description"),
        default: value.get("default").map(any),
        multiple_of: number(value, "multipleOf"),
        maximum: number(value, "maximum"),
        exclusive_maximum: flag(value, "exclusiveMaximum"),
        minimum: number(value, "minimum"),
        exclusive_minimum: flag(value, "exclusiveMinimum"),
        max_length: integer(value, "maxLength"),
        min_length: integer(value, "minLength"),
        pattern: text(value, "pattern"),
        max_items: integer(value, "maxItems"),
        min_items: integer(value, "minItems"),
        unique_items: flag(value, "uniqueItems"),
        max_properties: integer(value, "maxProperties"),
        min_properties: integer(value, "minProperties"),
        required: texts(value, "required"),
        allowed: list(value, "enum").iter().map(any).collect(),
        additional_properties: value.get("additionalProperties").map(|additional| {
            let kind = match additional {
                Value::Bool(any) => AdditionalKind::Boolean(*any),
                other => AdditionalKind::Schema(Box::new(schema(other))),
            };
            Box::new(AdditionalProperties { kind: Some(kind) })
        }),
        type_item: value
            .get("type")
            .and_then(Value::as_str)
            .map(|name| TypeItem {
                value: vec![name.to_owned()],
            }),
        items: value.get("items").map(|items| ItemsItem {
            schema: vec![schema(items)],
        }),
        all_of: list(value, "allOf").iter().map(schema).collect(),
        properties: value.get("properties").map(named_schemas),
        example: value.get("example").map(any),
        vendor_extension: extensions(value),
    }
}

fn named_schemas(value: &Value) -> NamedSchemas {
    NamedSchemas {
        additional_properties: fields(value)
            .map(|(name, child)| NamedSchema {
                name: name.clone(),
                value: Some(schema(child)),
            })
            .collect(),
    }
}

fn extensions(value: &Value) -> Vec<NamedAny> {
    fields(value)
        .filter(|(name, _)| name.starts_with("x-"))
        .map(|(name, value)| NamedAny {
            name: name.clone(),
            value: Some(any(value)),
        })
        .collect()
}

/// JSON is YAML.
fn any(value: &Value) -> Any {
    Any {
        yaml: format!("{value}\n"),
    }
}

fn fields(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

fn text(value: &Value, name: &str) -> String {
    value
        .get(name)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

fn texts(value: &Value, name: &str) -> Vec<String> {
    let items = list(value, name).iter();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value
        .get(name)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn flag(value: &Value, name: &str) -> bool {
    value.get(name).and_then(Value::as_bool).unwrap_or_default()
}

fn number(value: &Value, name: &str) -> f64 {
    value.get(name).and_then(Value::as_f64).unwrap_or_default()
}

fn integer(value: &Value, name: &str) -> i64 {
    value.get(name).and_then(Value::as_i64).unwrap_or_default()
}
